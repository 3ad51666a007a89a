"""Makes chunks from the outputs of vLLM's engine core: it returns ids, their text is made here.

Most tokenizers write a complete character the same after any other text: for these the text of a token is
looked up. Other text comes from the tokenizer's own incremental decoding, with a few tokens of the prompt
before it: some write a space only after other text. Special tokens are not decoded: each is either shown or
hidden, independent of its neighbours. A token that only begins a character waits for the rest.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from msgspec import structs

from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, PromptToken, Token
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest
from antiphon.engines.token_cache import TokenCache, added_tokens
from antiphon.engines.vllm_beams import Beam, Row

PRIMING = 5
"""Tokens of the prompt that are decoded before the first text, as in vLLM itself."""

MOST_OF_A_CHARACTER = 8
"""The largest number of tokens that are held back.

A character has four bytes at most: more never become one.
"""

_APART = frozenset({"ByteLevel", "ByteFallback", "Metaspace", "Replace"})
"""The decoders of Hugging Face's tokenizers that write a complete character the same after any other text."""

_BROKEN = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_FINISHES = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Stream(Protocol):
    """Makes text from tokens, one after the other."""

    def step(self, token: int) -> str | None:
        """The text that this token completes."""
        ...


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
        text = self._texts[token] if self._apart else _BROKEN
        self[token] = chunk = None if _BROKEN in text else _chunk(token, text)
        return chunk


class _NoChunks(dict[int, Chunk | None]):
    """None for each token."""

    def __missing__(self, token: int) -> None:
        return None


NO_CHUNKS: Mapping[int, Chunk | None] = _NoChunks()


def _chunk(token: int, text: str) -> Chunk:
    return Chunk(text, (Token(token, text),))


class Vocabulary:
    """The tokens of a model, and their texts. `tokenizer` is the one that vLLM has loaded.

    Nearly all are Hugging Face's, written in Rust; others have at least `encode` and `decode`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = getattr(tokenizer, "_tokenizer", None)
        self.size = len(tokenizer)
        self.special = _special_tokens(tokenizer)
        cache = TokenCache(self._encode, {} if self._fast is None else added_tokens(self._fast))
        self.encode, self.tokenize = cache.encode, cache.tokenize
        anchor = self.encode("a")
        self._anchor = anchor, self._decode(anchor)
        self._texts = _Texts(self._text, self.size)
        self._apart = self._fast is not None and _writes_apart(self._fast)
        self.text: Callable[[int], str] = self._texts.__getitem__
        self.shown = lru_cache(8)(self._shown)
        self.chunks = lru_cache(8)(self._chunks)

    def _encode(self, text: str) -> list[int]:
        if self._fast is None:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            ids = self._fast.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Their text, special ones included. Raises RequestError for an unknown id."""
        for token in ids:
            if not 0 <= token < self.size:
                message = f"There is no token {token}: the ids of this model are 0 to {self.size - 1}."
                raise RequestError(message, param="tokens")
        return self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = (self._fast or self._tokenizer).decode([*ids], skip_special_tokens=False)
        return text

    def _text(self, token: int) -> str:
        """The text of a token between others; an incomplete character is `\ufffd`."""
        ids, before = self._anchor
        return self._decode((*ids, token))[len(before) :]

    def raw(self, token: int) -> bytes | None:
        """Its bytes, if its text does not represent them all; None if it does, or they are unknown."""
        if _BROKEN not in self.text(token):
            return None
        name: str | None = self._tokenizer.convert_ids_to_tokens([token])[0]
        if name is None:
            return None
        if match := _BYTE.fullmatch(name):
            return bytes.fromhex(match[1])
        values = [_BYTES.get(letter) for letter in name]
        return None if None in values else bytes(value for value in values if value is not None)

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
        return _Chunks(self.shown(preserve), self._texts, apart=self._apart)

    def stream(self, before: Sequence[int] = ()) -> Stream:
        """Makes text of the tokens that follow these."""
        primer = [*before[-PRIMING:]]
        if self._decode(primer).endswith(_BROKEN):  # it would be read as the beginning of the text
            primer = []
        if self._fast is None:
            return PlainStream(self._decode, primer)
        return FastStream(self._fast, primer)


class FastStream:
    """The stream of Hugging Face's tokenizers."""

    def __init__(self, tokenizer: Any, primer: list[int]) -> None:
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415 - an optional extra

        self._tokenizer = tokenizer
        self._step = DecodeStream(ids=primer, skip_special_tokens=False).step

    def step(self, token: int) -> str | None:
        text: str | None = self._step(self._tokenizer, token)
        return text


class PlainStream:
    """Works with any tokenizer: the last tokens are decoded with and without the new one."""

    def __init__(self, decode: Any, primer: list[int]) -> None:
        self._decode = decode
        self._ids = primer
        self._read = len(primer)
        self._before = decode(primer)

    def step(self, token: int) -> str | None:
        self._ids.append(token)
        text: str = self._decode(self._ids)
        if len(text) <= len(self._before) or text.endswith(_BROKEN):
            return None
        new = text[len(self._before) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._before = self._decode(self._ids)
        return new


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
            raise EngineError from RuntimeError(f"vLLM: finish_reason {output.finish_reason}")
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


def _writes_apart(tokenizer: Any) -> bool:
    """Whether a tokenizer of Hugging Face's writes each complete character the same after any other text."""
    if tokenizer.decoder is None:  # it writes a space between any two tokens
        return False
    decoder = json.loads(tokenizer.decoder.__getstate__())
    kinds = [part["type"] for part in decoder.get("decoders", (decoder,)) if not _strips_start(part)]
    if "Fuse" in kinds[-1:]:  # it would need the whole text
        kinds.pop()
    return bool(kinds) and {*kinds} <= _APART


def _strips_start(decoder: Mapping[str, Any]) -> bool:
    """Whether all it does is to strip the beginning of the whole text."""
    return decoder["type"] == "Strip" and not decoder["stop"]


def _special_tokens(tokenizer: Any) -> Mapping[int, str]:
    """The texts of the special tokens by their ids."""
    ids, texts = tokenizer.all_special_ids, tokenizer.all_special_tokens
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return dict(zip(ids, texts, strict=True)) | {
        token: added_token.content for token, added_token in added.items() if added_token.special
    }


def _byte_letters() -> Mapping[str, int]:
    """The letters that tokenizers of bytes (GPT-2's and most since) have for each byte."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTES = _byte_letters()
