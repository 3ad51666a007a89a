"""Makes chunks from the outputs of vLLM's engine core: it returns ids, their text is made here.

Most tokenizers write a complete character the same after any other text: for these the text of a token is
looked up. Other text comes from the tokenizer's own incremental decoding, with a few tokens of the prompt
before it: some write a space only after other text. Special tokens are not decoded: each is either shown or
hidden, independent of its neighbours. A token that only begins a character waits for the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import structs

from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, PromptToken, Token
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest
from antiphon.engines.token_cache import TokenCache
from antiphon.engines.vllm_beams import Beam, Row
from antiphon.engines.vllm_tokenizers import BROKEN, Codec, Stream

PRIMING = 5
"""Tokens of the prompt that are decoded before the first text, as in vLLM itself."""

MOST_OF_A_CHARACTER = 8
"""The largest number of tokens that are held back.

A character has four bytes at most: more never become one.
"""

_FINISHES = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class _Texts(dict[int, str]):
    """The texts of tokens, made when they are first needed."""

    def __init__(self, text: Callable[[int], str], size: int) -> None:
        self._text = text
        self._size = size

    def __missing__(self, token: int) -> str:
        text = self._text(token)
        if 0 <= token < self._size:  # otherwise it is not a token: there is no limit to those
            self[token] = text
        return text


class _Chunks(dict[int, Chunk | None]):
    """The chunk of a token whose visible text is independent of its neighbours; None if it depends on them.

    It is known for special tokens, and, with `apart`, for tokens whose text has complete characters. A model
    writes the same tokens repeatedly: a lookup takes a fifth of the time of making a chunk.
    """

    def __init__(self, shown: Mapping[int, str], texts: _Texts, *, apart: bool) -> None:
        super().__init__({token: _chunk(token, text) for token, text in shown.items()})
        self._texts = texts
        self._apart = apart

    def __missing__(self, token: int) -> Chunk | None:
        text = self._texts[token] if self._apart else BROKEN
        self[token] = chunk = None if BROKEN in text else _chunk(token, text)
        return chunk


class _NoChunks(dict[int, Chunk | None]):
    """None for each token."""

    def __missing__(self, token: int) -> None:
        return None


NO_CHUNKS: Mapping[int, Chunk | None] = _NoChunks()


def _chunk(token: int, text: str) -> Chunk:
    return Chunk(text, (Token(token, text),))


class Vocabulary:
    """The tokens of a model, and their texts, by the codec of its tokenizer."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.size = codec.size
        self.special = codec.special
        cache = TokenCache(codec.encode, codec.added)
        self.encode, self.tokenize = cache.encode, cache.tokenize
        anchor = self.encode("a")
        self._anchor = anchor, codec.decode(anchor)
        self._texts = _Texts(self._text, self.size)
        self.text: Callable[[int], str] = self._texts.__getitem__
        self.shown = lru_cache(8)(self._shown)
        self.chunks = lru_cache(8)(self._chunks)

    def decode(self, ids: Sequence[int]) -> str:
        """Their text, special ones included. Raises RequestError for an unknown id."""
        for token in ids:
            if not 0 <= token < self.size:
                message = f"There is no token {token}: the ids of this model are 0 to {self.size - 1}."
                raise RequestError(message, param="tokens")
        return self.codec.decode(ids)

    def _text(self, token: int) -> str:
        """The text of a token between others; an incomplete character is `\ufffd`."""
        ids, before = self._anchor
        return self.codec.decode((*ids, token))[len(before) :]

    def raw(self, token: int) -> bytes | None:
        """Its bytes, if its text does not represent them all; None if it does, or they are unknown."""
        return self.codec.raw(token) if BROKEN in self.text(token) else None

    def candidates(self, ids: Sequence[int], logprobs: Sequence[float]) -> tuple[Candidate, ...]:
        """Tokens with their log probabilities."""
        return tuple(
            Candidate(token, self.text(token), logprob, self.raw(token))
            for token, logprob in zip(ids, logprobs, strict=True)
        )

    def written(self, ids: Sequence[int]) -> Iterator[str]:
        """The text that each of these tokens adds, special ones included."""
        step = self.stream().step
        for token in ids:
            text = self.special.get(token)
            yield (step(token) or "") if text is None else text

    def _shown(self, preserve: frozenset[str] | None) -> Mapping[int, str]:
        """The visible text of each special token, if only those of `preserve` are shown; None: all."""
        if preserve is None:
            return self.special
        return {token: text if text in preserve else "" for token, text in self.special.items()}

    def _chunks(self, preserve: frozenset[str] | None) -> Mapping[int, Chunk | None]:
        """The chunk of each token, if only these special ones are shown. None: use a stream."""
        return _Chunks(self.shown(preserve), self._texts, apart=self.codec.apart)

    def stream(self, before: Sequence[int] = ()) -> Stream:
        """Makes text of the tokens that follow these."""
        primer = [*before[-PRIMING:]]
        if self.codec.decode(primer).endswith(BROKEN):  # it would be read as the beginning of the text
            primer = []
        return self.codec.stream(primer)


class OutputReader:
    """Turns the outputs for one request into chunks. The first has the number of tokens of the media."""

    def __init__(self, vocabulary: Vocabulary, request: GenerationRequest) -> None:
        sampling: Sampling = request.sampling
        self.media_tokens = 0
        self._vocabulary = vocabulary
        preserve = None if sampling.skip_special_tokens is False else request.preserve
        self._shown = vocabulary.shown(preserve)
        self._shown_at_end = vocabulary.shown(request.preserve)
        self._chunks = vocabulary.chunks(preserve)
        self._before = request.prompt.ids
        self._stream: Stream | None = None  # made for the first token whose text is not looked up
        self._stops = frozenset(sampling.stop_token_ids)
        self._scored = sampling.logprobs is not None
        self._candidate_count = sampling.logprobs or 0
        self._pending: list[Token] = []  # tokens of an incomplete character

    def _step(self, token: int) -> str | None:
        """The text that this token completes, decoded with the ones before it."""
        if self._stream is None:
            self._stream = self._vocabulary.stream(self._before)
        return self._stream.step(token)

    @property
    def known(self) -> Mapping[int, Chunk | None]:
        """The chunk of each token that need not be read if it is next, alone and not the last."""
        return NO_CHUNKS if self._pending or self._scored else self._chunks

    def read(self, output: Any) -> Chunk | None:
        """The chunk in an output, if there is one. Raises EngineError if vLLM gave up."""
        ids, cached = output.new_token_ids, 0
        if output.prefill_stats is not None:
            if self.media_tokens:
                return self._first(output)
            cached = output.prefill_stats.num_cached_tokens
        if len(ids) == 1 and output.finish_reason is None and not self._pending and not self._scored:
            token = ids[0]
            chunk = self._chunks[token]
            if chunk is None and (text := self._step(token)) is not None:
                chunk = _chunk(token, text)
            if chunk is not None:
                return structs.replace(chunk, cached_tokens=cached) if cached else chunk
            self._pending.append(Token(token, ""))
            return Chunk("", (), None, cached) if cached else None
        finish = None if output.finish_reason is None else self._finish(output)
        ended = finish is not None and finish.reason is FinishReason.STOP
        tokens = [*self._tokens(ids, _rows(output.new_logprobs), ended=ended)]
        if finish is not None:
            tokens += self._taken()
        elif not tokens and not cached:
            return None
        return Chunk("".join(token.text for token in tokens), tuple(tokens), finish, cached)

    def _first(self, output: Any) -> Chunk:
        """The first chunk of an answer to a prompt with media."""
        tokens, self.media_tokens = self.media_tokens, 0
        return structs.replace(self.read(output) or Chunk("", ()), media_tokens=tokens)

    def whole(self, beam: Beam) -> list[Chunk]:
        """The chunks of a whole answer."""
        finish = beam.finish or Finish(FinishReason.LENGTH)
        rows = beam.rows if self._scored else ()
        tokens = [*self._tokens(beam.ids, rows, ended=beam.finish is not None), *self._taken()]
        return [*(Chunk(token.text, (token,)) for token in tokens), Chunk("", (), finish)]

    def _tokens(self, ids: Sequence[int], rows: Sequence[Row], *, ended: bool) -> Iterator[Token]:
        """The new tokens whose text is complete. The last may have `ended` the answer."""
        scores = iter(rows)
        for offset, token in enumerate(ids, 1 - len(ids)):
            self._pending.append(self._score(token, next(scores, None)))
            text = self._ending(token) if ended and offset == 0 else self._known_text(token)
            if text is None:
                text = self._step(token)
            if text is None and len(self._pending) >= MOST_OF_A_CHARACTER:
                text = self._given_up()
            if text is not None:
                yield from self._completed(text)

    def _known_text(self, token: int) -> str | None:
        """The text of the last token that has begun; None if it depends on those before it."""
        if len(self._pending) > 1:  # inside of a character
            return self._shown.get(token)
        chunk = self._chunks[token]
        return None if chunk is None else chunk.text

    def _ending(self, token: int) -> str:
        """The text of the token that ended the answer: hidden, but for the model's own markers."""
        return "" if token in self._stops else self._shown_at_end.get(token, "")

    def _given_up(self) -> str:
        """The text of bytes that are not a character: replacement characters.

        After it, decoding starts again.
        """
        self._stream = self._vocabulary.stream()
        return self._vocabulary.decode([token.id for token in self._pending])

    def _completed(self, text: str) -> Iterable[Token]:
        """The tokens of a piece of text. The text belongs to the last of them, which completed it."""
        *prefix, last = self._taken()
        raws: list[bytes | None] = [None] * (len(prefix) + 1)
        if self._scored and prefix:
            token_bytes = [self._vocabulary.raw(token.id) for token in (*prefix, last)]
            if b"".join(raw or b"" for raw in token_bytes) == text.encode():
                raws = token_bytes
        for token, raw in zip(prefix, raws, strict=False):
            yield Token(token.id, "", token.logprob, token.top, raw)
        yield Token(last.id, text, last.logprob, last.top, raws[-1])

    def _taken(self) -> list[Token]:
        tokens, self._pending = self._pending, []
        return tokens

    def _score(self, token: int, row: Row | None) -> Token:
        if row is None:
            return Token(token, "")
        ids, logprobs = row
        end = self._candidate_count + 1
        return Token(token, "", logprobs[0], self._vocabulary.candidates(ids[1:end], logprobs[1:end]))

    def _finish(self, output: Any) -> Finish:
        reason = _FINISHES.get(str(output.finish_reason))
        if reason is None:
            why = getattr(output, "error", None)
            raise EngineError from RuntimeError(f"vLLM: finish_reason {output.finish_reason} {why or ''}")
        stop = output.stop_reason if output.stop_reason in self._stops else None
        return Finish(reason, stop, kv_transfer_params=output.kv_transfer_params)


def _rows(lists: Any) -> Sequence[Row]:
    """For each position, its token and the most likely ones: their ids, and their log probabilities."""
    if lists is None:
        return ()
    return [*zip(lists.logprob_token_ids.tolist(), lists.logprobs.tolist(), strict=True)]


def next_row(output: Any) -> Row:
    """The candidates in an output for one token. Raises EngineError if vLLM gave up."""
    if output.new_logprobs is None:
        raise EngineError from RuntimeError(f"vLLM: finish_reason {output.finish_reason}")
    [row] = _rows(output.new_logprobs)
    return row


def prompt_tokens(vocabulary: Vocabulary, ids: Sequence[int], output: Any) -> tuple[PromptToken, ...]:
    """The tokens of a prompt with their log probabilities. Raises EngineError if vLLM gave up."""
    scores = output.new_prompt_logprobs_tensors
    if scores is None:
        raise EngineError from RuntimeError(f"vLLM: finish_reason {output.finish_reason}")
    texts = vocabulary.written(ids)
    tokens = [
        PromptToken(token, text, None, (), vocabulary.raw(token))
        for token, text in zip(ids, texts, strict=True)
    ]
    ranked = zip(_rows(scores), scores.selected_token_ranks.tolist(), strict=True)
    for place, ((candidate_ids, logprobs), rank) in enumerate(ranked, start=1):
        top = vocabulary.candidates(candidate_ids[1:], logprobs[1:])
        tokens[place] = structs.replace(tokens[place], logprob=logprobs[0], top=top, rank=rank)
    return tuple(tokens)
