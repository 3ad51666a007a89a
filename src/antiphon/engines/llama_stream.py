"""The messages of one of llama.cpp's completions, read as chunks.

llama.cpp drops token ids: while its text ends inside a character it sends nothing, and of the tokens that it
then covers with one message it names only the last. Its count stays right, so a jump of the count shows how
many are missing. Tokenizing the text again recovers them if the result has that many ids and the same last
one; if not, they are reported as `UNKNOWN_ID`, so the number of tokens is always right. Their log
probabilities cannot be recovered.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import (
    ByteValue,
    Candidate,
    Chunk,
    Finish,
    FinishReason,
    Token,
    TokenCount,
    TokenId,
    merge_chunks,
)
from antiphon.core.errors import AntiphonError, EngineError, ReportedError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.llama_request import GRAMMAR_PARAM
from antiphon.engines.redact import redacted

UNKNOWN_ID = -1
"""The id of a token that llama.cpp counted but did not name."""

MAX_UNNAMED = 4096
"""Tokens that llama.cpp may have counted without naming them, since the last that it named."""

REMEMBERED = 4096
"""Texts and tokens that are remembered: mostly single characters and special tokens, and few recur often."""


class TokenPiece(Struct, frozen=True):
    """A token of a text, and its bytes, which need not be whole characters."""

    id: int
    raw: bytes


class TokenReader(Protocol):
    """The methods that readers need."""

    @property
    def pieces(self) -> Callable[[str], Sequence[TokenPiece]]:
        """The tokens of a text."""
        ...

    @property
    def text(self) -> Callable[[int], str]:
        """The text of a token."""
        ...


class _TopLogprob(Struct, frozen=True):
    id: TokenId
    token: str
    bytes: list[ByteValue]
    logprob: float


class Scored(_TopLogprob, frozen=True):
    """A token and its log probability, with those of the most likely ones."""

    top_logprobs: tuple[_TopLogprob, ...] = ()


class _Progress(Struct, frozen=True):
    cache: TokenCount = 0


class ErrorMessage(Struct, frozen=True):
    """An error that ends an answer."""

    message: str = ""
    code: int = 500


class _Message(Struct, frozen=True):
    content: str = ""
    tokens: tuple[TokenId, ...] = ()
    tokens_predicted: TokenCount = 0
    stop: bool = False
    stop_type: str = "eos"
    completion_probabilities: tuple[Scored, ...] = ()
    prompt_progress: _Progress | None = None
    error: ErrorMessage | None = None

    @property
    def end(self) -> FinishReason | None:
        """Why this is the last message; None if it is not."""
        return _REASONS.get(self.stop_type, FinishReason.STOP) if self.stop else None


_REASONS = {"eos": FinishReason.STOP, "word": FinishReason.STOP, "limit": FinishReason.LENGTH}
_decode = msgspec.json.Decoder(_Message).decode


class ChunkReader:
    """Turns the messages of one completion into chunks. The text of tokens in `stops` is hidden."""

    def __init__(self, tokenizer: TokenReader, stops: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._counted = 0
        self._cached = 0  # not yet reported

    def read(self, raw: bytes) -> Chunk | None:
        """The chunk in a message, None if it only reports progress.

        It has `finish` if the last token came, or one of the stops: what llama.cpp may send after it is
        ignored. Raises EngineError or RequestError if the message is an error. If the tokenizer raises, the
        reader is unchanged, and the message can be read again.
        """
        message = _decode(raw)
        if message.error is not None:
            raise failure_of_message(message.error)
        if message.prompt_progress is not None:
            self._cached = message.prompt_progress.cache
            return None
        if message.end is not None:
            return self._last(message, message.end)
        chunk = self._next(message)
        self._counted, self._cached = message.tokens_predicted, 0
        return self._stopped(chunk) if self._stops else chunk

    def _next(self, message: _Message) -> Chunk:
        text, new, ids = message.content, message.tokens_predicted - self._counted, message.tokens
        if new == len(ids) == 1:
            return Chunk(text, (Token(ids[0], text),), None, self._cached)
        return Chunk(text, tuple(self._recovered(text, new, ids)), None, self._cached)

    def _recovered(self, text: str, count: int, last_ids: tuple[int, ...]) -> list[Token]:
        """`count` tokens, which end with `last_ids`. All text belongs to the last, which completed it."""
        if count - len(last_ids) > MAX_UNNAMED:
            raise EngineError from ReportedError(f"{count} tokens for a text of {len(text)} characters")
        pieces = self._tokenizer.pieces(text)
        ids = [piece.id for piece in pieces]
        if len(ids) != count or tuple(ids[-len(last_ids) :]) != last_ids:
            ids = [UNKNOWN_ID] * (count - len(last_ids)) + list(last_ids)
        return [*(Token(token_id, "") for token_id in ids[:-1]), Token(ids[-1], text)]

    def _stopped(self, chunk: Chunk) -> Chunk:
        """The chunk up to the first of the stops, if it has one, and then with `finish`."""
        for count, token in enumerate(chunk.tokens, 1):
            if token.id in self._stops:
                rest = len(chunk.tokens) - count
                finish = Finish(FinishReason.STOP, token.id, self._counted - rest)
                return Chunk("", (*chunk.tokens[: count - 1], _hidden(token)), finish, chunk.cached_tokens)
        return chunk

    def _last(self, message: _Message, reason: FinishReason) -> Chunk:
        lost = message.tokens_predicted - self._counted  # they began a character that was never completed
        finish = Finish(reason, completion_tokens=message.tokens_predicted)
        return Chunk(message.content, (Token(UNKNOWN_ID, ""),) * lost, finish, self._cached)


class ScoredReader(ChunkReader):
    """A reader for completions with log probabilities: each position has `candidate_count` candidates."""

    def __init__(
        self, tokenizer: TokenReader, stops: frozenset[int] = frozenset(), *, candidate_count: int
    ) -> None:
        super().__init__(tokenizer, stops)
        self._candidate_count = candidate_count

    def _next(self, message: _Message) -> Chunk:
        chunk, scores = super()._next(message), message.completion_probabilities
        if not scores:
            return chunk
        score = scores[-1]
        *prefix, last = chunk.tokens
        top = tuple(map(self._candidate, score.top_logprobs[: self._candidate_count]))
        raw = _raw(score.bytes, last.text) if last.raw is None else last.raw
        scored = Token(last.id, last.text, score.logprob, top, raw)
        return Chunk(chunk.text, (*prefix, scored), None, chunk.cached_tokens)

    def _recovered(self, text: str, count: int, last_ids: tuple[int, ...]) -> list[Token]:
        tokens = super()._recovered(text, count, last_ids)
        if tokens[0].id == UNKNOWN_ID:
            return tokens
        raws = (piece.raw for piece in self._tokenizer.pieces(text))
        return [Token(token.id, token.text, None, (), raw) for token, raw in zip(tokens, raws, strict=True)]

    def _candidate(self, entry: _TopLogprob) -> Candidate:
        text = entry.token
        if text.isascii() and len(text) == len(entry.bytes) and text:
            return Candidate(entry.id, text, entry.logprob)
        if not entry.bytes:  # special: llama.cpp does not send its text
            return Candidate(entry.id, self._tokenizer.text(entry.id), entry.logprob)
        whole = bytes(entry.bytes).decode("utf-8", "replace")
        return Candidate(entry.id, whole, entry.logprob, _raw(entry.bytes, whole))


def _raw(values: list[int], text: str) -> bytes | None:
    """The bytes, if they are not those of the text."""
    if len(values) == len(text) and text.isascii():
        return None
    raw = bytes(values)
    return None if raw == text.encode() else raw


class MessageReader(Protocol):
    """Turns the messages of one completion into chunks."""

    def read(self, raw: bytes) -> Chunk | None: ...


class SpecialReader:
    """Shows the special tokens that llama.cpp hides: their text is looked up.

    Each is held back until the next message, which says whether it ended the answer: that one stays hidden.
    """

    def __init__(self, reader: ChunkReader, tokenizer: TokenReader) -> None:
        self._reader = reader
        self._tokenizer = tokenizer
        self._held: Chunk | None = None

    def read(self, raw: bytes) -> Chunk | None:
        held = self._held
        shown = None if held is None else self._shown(held)  # it may raise: nothing has changed
        chunk = self._reader.read(raw)
        if chunk is None:
            return None
        self._held = None
        finish = chunk.finish
        if finish is None and not chunk.text and len(chunk.tokens) == 1 and chunk.tokens[0].id != UNKNOWN_ID:
            self._held = chunk
            return shown
        if held is None or shown is None:
            return chunk
        ended = finish is not None and finish.reason is FinishReason.STOP and finish.stop is None
        return merge_chunks([held if ended else shown, chunk])

    def _shown(self, chunk: Chunk) -> Chunk:
        [token] = chunk.tokens
        text = self._tokenizer.text(token.id)
        return replace(chunk, text=text, tokens=(replace(token, text=text),))


def reader_of(sampling: Sampling, tokenizer: TokenReader) -> MessageReader:
    """The reader for a completion with this sampling."""
    stops = frozenset(sampling.stop_token_ids)
    if sampling.logprobs is None:
        reader = ChunkReader(tokenizer, stops)
    else:
        reader = ScoredReader(tokenizer, stops, candidate_count=sampling.logprobs)
    return SpecialReader(reader, tokenizer) if sampling.skip_special_tokens is False else reader


def _hidden(token: Token) -> Token:
    return Token(token.id, "", token.logprob, token.top, token.raw)


def failure_of_message(error: ErrorMessage) -> AntiphonError:
    """The error for clients: llama.cpp's message if it blames the request, otherwise a general one."""
    failure = _explained(error)
    failure.__cause__ = ReportedError(redacted(error.message))
    return failure


def _explained(error: ErrorMessage) -> AntiphonError:
    if "parse grammar" in error.message:
        return RequestError("The grammar is not valid GBNF.", param=GRAMMAR_PARAM)
    if "empty grammar stack" in error.message:
        return EngineError(
            "No token of the model matches the grammar at this place. Use a less strict grammar or schema."
        )
    if 400 <= error.code < 500:
        return EngineError(f"The model refused the prompt: {redacted(error.message)}.")
    return EngineError()
