r"""The script of a scripted engine: lines of JSON, each an answer.

    {"when": "weather", "output": "<tool_call>\n{…}\n</tool_call>", "split": "chars"}
    {"output": "Hello there!", "delay_ms": 20}

The keys are the fields of `Line`. The text is the model's raw text with special
tokens written out. Each piece of it is one token and one chunk.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, cycle, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, Token
from antiphon.core.errors import EngineError
from antiphon.engines.engine import GenerationRequest

SHORT = 4096
"""Chunks of an answer that are prepared before it is played. Others may have any number."""

ROUNDING = 1e-9
"""How much probabilities may sum up to more than 1."""

SCORED = 4096
"""Chunks with log probabilities that are remembered."""

# A special token, a tag, a word with the space before it, white space, or one other character.
_PIECES = re.compile(r"<\|[^<>|]*+\|>|</?+\w++>|\s?+\w++|\s++|[^\w\s]")


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of a script.

    `when` must occur in the rendered prompt, or in its last characters, whose number is `last`; None matches
    any. `split` says where the pieces of `output` end: "whole", "chars", a number of characters for each,
    the positions of the cuts, or None for word-like pieces. `finish` is "stop" or "length". `delay_ms` is
    the pause before each chunk. `tokens` is the number of pieces: they are repeated until it is reached.
    `fail_after` is the number of chunks after which an EngineError is raised. `next` has the natural log
    probabilities of tokens, by their texts, for the first token of the answer: all others are less probable.
    """

    output: str
    when: str | None = None
    last: int | None = None
    split: str | int | list[int] | None = None
    finish: FinishReason = FinishReason.STOP
    delay_ms: float = 0
    tokens: int | None = None
    fail_after: int | None = None
    next: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in ("delay_ms", "tokens", "fail_after", "last"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"`{name}` must not be negative")
        if self.finish is FinishReason.ERROR:
            raise ValueError('`finish` is "stop" or "length"; `fail_after` is how a line fails')
        if self.tokens and not self.output:
            raise ValueError("`tokens` repeats `output`, which must not be empty then")
        if self.next and not self.output:
            raise ValueError("`next` is about the first token of `output`, which must not be empty then")
        logprobs = (self.next or {}).values()
        above = any(logprob > 0 for logprob in logprobs)
        if "" in (self.next or {}) or above or sum(map(math.exp, logprobs)) > 1 + ROUNDING:
            raise ValueError("`next` has log probabilities of texts that are not empty: together 1 at most")
        _cut(self.output, self.split)


class ScriptedAnswer(Struct, frozen=True):
    """A line in its final form: its chunks, each with one token. They are repeated to the number `length`."""

    line: Line
    chunks: tuple[Chunk, ...]
    length: int

    def play(self, request: GenerationRequest) -> Iterator[Chunk]:
        """The chunks for this request. Raises EngineError after them if the line is to fail.

        If the line starts with the `answer_start` of the request, only the rest of it is returned; otherwise
        the whole line.
        """
        sampling, line = request.sampling, self.line
        chunks, length = (
            self._after(request.answer_start) if request.answer_start else (cycle(self.chunks), self.length)
        )
        if length and sampling.ignore_eos:
            length = request.max_tokens + 1
        elif length:
            length = max(length, sampling.min_tokens or 0)
        played = self._cut(chunks, length, request.max_tokens)
        if sampling.logprobs is not None:
            played = map(partial(_scored, count=sampling.logprobs), played)
            if line.next and not request.answer_start:
                played = chain((_first(line.next, next(played), sampling.logprobs),), played)
        if sampling.stop_token_ids:
            played = _until(frozenset(sampling.stop_token_ids), sampling.min_tokens or 0, played)
        return played if line.fail_after is None else _then_fail(line.fail_after, played)

    def _cut(self, chunks: Iterator[Chunk], count: int, limit: int) -> Iterator[Chunk]:
        """The requested number of chunks, at most `limit`, the last one with `finish`."""
        reason = FinishReason.LENGTH if limit < count else self.line.finish
        length = min(limit, count)
        if length < 1:
            return iter((Chunk("", finish=Finish(reason)),))
        if length > SHORT:
            return chain(islice(chunks, length - 1), map(partial(_ended, reason), islice(chunks, 1)))
        # The step of a real engine does not go through iterators of iterators for each token either.
        played = [*islice(chunks, length)]
        played[-1] = _ended(reason, played[-1])
        return iter(played)

    def _after(self, start: str) -> tuple[Iterator[Chunk], int]:
        """The chunks after a beginning, repeated, and their number until the end."""
        remaining = self.length
        chunks, position = cycle(self.chunks), 0
        while position < len(start) and remaining:
            chunk = next(chunks)
            rest = start[position : position + len(chunk.text)]
            if not chunk.text.startswith(rest):
                return cycle(self.chunks), self.length
            position += len(rest)
            remaining -= 1
            if rest != chunk.text:
                return chain((chunk_of(chunk.text[len(rest) :]),), chunks), remaining + 1
        return (chunks, remaining) if position == len(start) else (cycle(self.chunks), self.length)


def answer_of(line: Line) -> ScriptedAnswer:
    """The line, ready to be played."""
    chunks = tuple(map(chunk_of, _cut(line.output, line.split)))
    length = len(chunks) if line.tokens is None else line.tokens
    return ScriptedAnswer(line, chunks, length)


def token_id(piece: str) -> int:
    """The id of a piece, which depends on its text only."""
    return crc32(piece.encode()) >> 1  # ids have 31 bits


def pieces_of(text: str) -> list[str]:
    """The word-like pieces of a text."""
    return _PIECES.findall(text)


def iter_pieces(text: str) -> Iterator[str]:
    """The same, one by one: a long text has a million, and other threads run between them."""
    return map(itemgetter(0), _PIECES.finditer(text))


def chunk_of(piece: str) -> Chunk:
    """A chunk of one token."""
    return Chunk(piece, (Token(token_id(piece), piece),))


def _ended(reason: FinishReason, chunk: Chunk) -> Chunk:
    """The chunk as the last one."""
    return Chunk(chunk.text, chunk.tokens, Finish(reason))


def _until(stops: frozenset[int], least: int, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks up to the first token, after the `least` first ones, that is one of the stops."""
    for number, chunk in enumerate(chunks):
        for token in chunk.tokens:
            if token.id in stops and number >= least:
                hidden = Token(token.id, "", token.logprob, token.top)
                yield Chunk("", (hidden,), Finish(FinishReason.STOP, token.id))
                return
        yield chunk


def _then_fail(after: int, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """This number of the chunks, and then the failure; all of them if there are fewer."""
    for number, chunk in enumerate(islice(chunks, after), 1):
        if chunk.finish is not None and number < after:
            yield chunk
            return
        yield Chunk(chunk.text, chunk.tokens)
    raise EngineError(f"The script says to fail after {after} chunks.")


def _scored(chunk: Chunk, count: int) -> Chunk:
    """The chunk with log probabilities, with `count` alternatives for each token."""
    return Chunk(chunk.text, tuple(_scored_token(token.text, count) for token in chunk.tokens), chunk.finish)


@lru_cache(SCORED)
def _scored_token(piece: str, count: int) -> Token:
    """A token always has the same probability, between exp(-2) and exp(-1), which depends on its id.

    It is first in the list. The others are the same text with a number, each e times less probable.
    """
    logprob = -1 - token_id(piece) % 1000 / 1000
    others = (f"{piece}{number}" for number in range(1, count))
    listed = islice(chain((piece,), others), count)
    top = tuple(Candidate(token_id(text), text, logprob - rank) for rank, text in enumerate(listed))
    return Token(token_id(piece), piece, logprob, top)


def _first(logprobs: Mapping[str, float], chunk: Chunk, count: int) -> Chunk:
    """The chunk of a first token, with these log probabilities.

    What they leave to others is shared by the made-up ones, less probable each than the one before.
    """
    rest = max(1 - sum(map(math.exp, logprobs.values())), ROUNDING)
    lowest = min(*logprobs.values(), math.log(rest))
    others = (text for token in chunk.tokens for text in (token.text, *(top.text for top in token.top)))
    unnamed = (text for text in dict.fromkeys(others) if text not in logprobs)
    scores = {**logprobs, **{text: lowest - 1 - rank for rank, text in enumerate(unnamed)}}
    likeliest = sorted(scores.items(), key=lambda pair: -pair[1])[:count]
    top = (*(Candidate(token_id(text), text, logprob) for text, logprob in likeliest),)
    tokens = (Token(token.id, token.text, scores[token.text], top) for token in chunk.tokens)
    return Chunk(chunk.text, (*tokens,), chunk.finish)


def _cut(text: str, split: str | int | Sequence[int] | None) -> list[str]:
    """The pieces of `text`. Raises ValueError if `split` does not fit it."""
    match split:
        case None:
            return pieces_of(text)
        case "whole":
            return [text] if text else []
        case "chars":
            return list(text)
        case int() if split > 0:
            return [text[start : start + split] for start in range(0, len(text), split)]
        case list() if all(start < end for start, end in pairwise([0, *split, len(text)])):
            return [text[start:end] for start, end in pairwise([0, *split, len(text)])]
    raise ValueError(
        '`split` must be "whole", "chars", a number above 0, or rising positions inside `output`'
    )


def read_script(path: Path) -> list[Line]:
    """The lines of a script file. Raises EngineError that names the line and the key at fault."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise EngineError(f"The script {path} cannot be read ({error.strerror}).") from error
    script = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                script.append(msgspec.json.decode(line, type=Line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise EngineError(f"{path.name}, line {number}: {error}.") from error
    return script


def check_lines(lines: Iterable[Line | Mapping[str, Any]]) -> list[Line]:
    """The lines of a script given as objects. Raises EngineError that names the line and the key."""
    script = []
    for number, line in enumerate(lines, 1):
        try:
            script.append(line if isinstance(line, Line) else msgspec.convert(line, Line))
        except msgspec.ValidationError as error:
            raise EngineError(f"The script, line {number}: {error}.") from error
    return script
