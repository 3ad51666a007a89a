"""The record of one answer (chunks, prompts, results of tools), to replay it and to continue after it.

A generation that was interrupted continues after its text so far: the recorded chunks are fed to a new
decoder, and the engine continues after the prompt and their text. The same is done when a server has crashed
in the middle of an answer, and when reasoning was closed on purpose.

The text so far consists of whole characters, and so must the tokens that the engine continues after: one that
gets the first bytes of a character cannot complete it, and vLLM returns the text of the whole prompt instead.
`split_unfinished` decides where an answer can be continued: only what comes before is decoded and recorded.

An answer that calls server tools has several generations. Between the chunks of two of them are the results
of the calls, and the next prompt.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.core.chunks import ChatChunk, Chunk
from antiphon.core.errors import EngineError
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Engine, GenerationRequest
from antiphon.run.bounded import BoundedPool
from antiphon.run.constraints import ConstraintPlan, plan_after
from antiphon.run.drive import Output

encode_entries = msgspec.msgpack.Encoder().encode
"""Entries → what `read_entries` reads."""
_decode = msgspec.msgpack.Decoder(list[Chunk | dict[str, Any]]).decode


class ToolResultEntry(Struct, frozen=True, tag="answer"):
    """The call of this `number` in the answer, counted from 0, took `seconds`."""

    result: ToolResult = field(name="outcome")
    seconds: float = 0.0
    number: int = 0


class ToolPrintedEntry(Struct, frozen=True, tag="printed"):
    """Output of the call of this `number`, at the time when `results` results had been shown."""

    number: int
    results: int
    stdout: str
    stderr: str


class PromptEntry(Struct, frozen=True, tag="prompt"):
    """Another generation begins, with this prompt."""

    ids: tuple[int, ...]


ReplayEntry = Chunk | ToolResultEntry | ToolPrintedEntry | PromptEntry


class ReplayLog:
    """Replays the chunks that were recorded before, then records further ones.

    `chunks` are those of the current generation.
    """

    takes_plain = False
    """Plain tokens may take the short way: they are recorded, and nothing else is asked for each."""

    def __init__(self, recorded: Iterable[ReplayEntry] = ()) -> None:
        self._entries = list(recorded)
        self._stored = len(self._entries)
        self._results = {e.number: e for e in self._entries if isinstance(e, ToolResultEntry)}
        self._printed = [e for e in self._entries if isinstance(e, ToolPrintedEntry)]
        # Recorded before, and not played yet
        of_calls = ToolResultEntry | ToolPrintedEntry
        self._later = deque(e for e in self._entries if not isinstance(e, of_calls))
        self.chunks = self._next_chunks()

    def _next_chunks(self) -> list[Chunk]:
        chunks = []
        while self._later and isinstance(self._later[0], Chunk):
            chunks.append(self._later.popleft())
        return chunks  # type: ignore[return-value]

    def new(self) -> bytes:
        """The entries since the last call, to be stored."""
        fresh, self._stored = self._entries[self._stored :], len(self._entries)
        return encode_entries(fresh) if fresh else b""

    @property
    def has_results(self) -> bool:
        """Calls of the server's tools were run."""
        return bool(self._results or self._printed)

    @property
    def is_continued(self) -> bool:
        """Another generation was begun after the current one."""
        return bool(self._later)

    def result_of(self, number: int) -> ToolResultEntry | None:
        """The result of the call of this number, if it was recorded."""
        return self._results.get(number)

    def printed_after(self, results: int) -> list[ToolPrintedEntry]:
        """The recorded output of calls at the time when this number of results had been shown."""
        return [entry for entry in self._printed if entry.results == results]

    def next_prompt(self) -> tuple[int, ...] | None:
        """The prompt of the next generation, if it was recorded: that generation is under way now."""
        entry = self._later.popleft() if self._later else None
        assert entry is None or isinstance(entry, PromptEntry)
        self.chunks = self._next_chunks()
        return None if entry is None else entry.ids

    def replayed(self) -> None:
        """The chunks that were recorded before are decoded again."""

    def between(self, output: Output) -> Output:
        """Where the events between two generations go."""
        return output

    def emits_last(self, left: int) -> None:
        """One of the last events of a large answer is emitted by itself; so many are `left`."""

    def write(self, entry: ToolResultEntry | ToolPrintedEntry | PromptEntry) -> None:
        """Record an entry between two generations."""
        self._entries.append(entry)

    def record(self, chunks: list[Chunk], before: int = 0) -> list[Chunk]:
        """Record chunks: the engine's, or text that is inserted as the model's.

        They are counted as part of an answer that had `before` tokens when the engine began.
        """
        if before:
            chunks = counted_after(chunks, before)
        self._entries += chunks
        self.chunks += chunks
        return chunks


class ReplayContext(Struct, frozen=True):
    """The state that makes an answer reproducible, so that another server can continue it.

    `rng` makes the ids of calls. `prompt` holds the tokens of the prompt of the first run. `calls_begun` is
    at least the number of calls of server tools that have begun: not all may have a result.
    """

    log: ReplayLog | None = None
    rng: Random | None = None
    prompt: tuple[int, ...] | None = None
    calls_begun: int = 0


def split_unfinished(chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """The chunks up to the last token with text, after which an answer can be continued; and what follows it.

    Tokens without text may have begun a character: an engine that continues the answer writes them again.
    """
    place = len(chunks)
    while place and type(chunk := chunks[place - 1]) is Chunk and not (chunk.text or chunk.finish):
        place -= 1
    whole, unfinished = [*chunks[:place]], [*chunks[place:]]
    if whole and whole[-1].finish is None:
        last = whole[-1]
        end = len(last.tokens)
        while end and not last.tokens[end - 1].text:
            end -= 1
        if 0 < end < len(last.tokens):
            whole[-1] = replace(last, tokens=last.tokens[:end])
            unfinished.insert(0, Chunk("", last.tokens[end:]))
    return whole, unfinished


async def request_after(
    chunks: Sequence[Chunk],
    engine: Engine,
    request: GenerationRequest,
    plan: ConstraintPlan,
    pool: BoundedPool,
) -> tuple[GenerationRequest, int, ConstraintPlan]:
    """The request for the text after these chunks of the answer to `request`, and their number of tokens.

    `plan` is what is enforced; that of the rest is returned, too. If the chunks have used up the token limit,
    the new one is 0. Raises EngineError for an engine that takes conversations: it cannot continue an answer.
    """
    if request.conversation is not None:
        raise EngineError("This answer was interrupted, and the server of its model cannot continue it.")
    rest, token_count = await continued(chunks, engine, request)
    rest_plan: ConstraintPlan | None = plan
    if plan.constraint is not None or plan.closing is not None:
        # The text so far may violate it: then the rest is not constrained.
        text = rest.answer_start[len(request.answer_start) :]
        rest_plan = await pool.run("conversation", plan_after, plan, text)
    if rest_plan is None:
        rest_plan = ConstraintPlan()
    return replace(rest, constraint=rest_plan.constraint), token_count, rest_plan


async def continued(
    chunks: Sequence[Chunk], engine: Engine, request: GenerationRequest
) -> tuple[GenerationRequest, int]:
    """The request for the text after these chunks, with its constraint, and their number of tokens."""
    text, ids, token_count = await _text_and_tokens(chunks, engine)
    rest = replace(
        request,
        prompt=request.prompt.continued(text, ids),
        max_tokens=request.max_tokens - token_count,
        sampling=_sampling_after(request.sampling, token_count),
        answer_start=request.answer_start + text,
    )
    return rest, token_count


async def _text_and_tokens(chunks: Sequence[Chunk], engine: Engine) -> tuple[str, tuple[int, ...], int]:
    """The text of the chunks, its tokens, and how many of these the model has written."""
    text = "".join(chunk.text for chunk in chunks)
    tokens = [token for chunk in chunks for token in chunk.tokens]
    ids = tuple(token.id for token in tokens)
    complete = "".join(token.text for token in tokens) == text  # or the engine has not returned them all
    if not complete or min(ids, default=0) < 0:  # it has not named them all
        ids = tuple(await engine.tokenize([text]))
    return text, ids, len(tokens) if complete else len(ids)


DetailsTypes = Mapping[str, type[Struct]]
"""Tag → the type of details of results, of all tools of a server."""
UNKNOWN_DETAILS: DetailsTypes = MappingProxyType({})


def read_entries(stored: Iterable[bytes], details_types: DetailsTypes = UNKNOWN_DETAILS) -> list[ReplayEntry]:
    """The entries in the output of `ReplayLog.new`, in order.

    Details of results whose type is unknown, or has changed, stay dictionaries: what they say is in the text
    of their result, too.
    """
    return [_read(entry, details_types) for piece in stored if piece for entry in _decode(piece)]


def _read(entry: Chunk | dict[str, Any], details_types: DetailsTypes) -> ReplayEntry:
    """Chunks are arrays; other entries are objects, as are the chunks of chats."""
    if isinstance(entry, Chunk):
        return entry
    converted = msgspec.convert(entry, ToolResultEntry | ToolPrintedEntry | PromptEntry | ChatChunk)
    if isinstance(converted, ToolResultEntry) and isinstance(details := converted.result.details, dict):
        with suppress(msgspec.ValidationError):
            details = msgspec.convert(details, details_types.get(str(details.get("type")), dict))
        return replace(converted, result=replace(converted.result, details=details))
    return converted


def _sampling_after(sampling: Sampling, token_count: int) -> Sampling:
    min_tokens = sampling.min_tokens
    return sampling if not min_tokens else replace(sampling, min_tokens=max(0, min_tokens - token_count))


def counted_after(chunks: list[Chunk], before: int) -> list[Chunk]:
    """The chunks as part of an answer that had `before` tokens already."""
    return [_with_token_count(chunk, before) for chunk in chunks]


def _with_token_count(chunk: Chunk, before: int) -> Chunk:
    """The chunk as part of an answer that had `before` tokens already.

    Its counts of cached tokens and of media tokens are removed: the prompt is longer now, and the first
    chunk of the answer has these counts.
    """
    finish = chunk.finish
    if finish is not None and finish.completion_tokens is not None:
        finish = replace(finish, completion_tokens=finish.completion_tokens + before)
    elif not (chunk.cached_tokens or chunk.media_tokens):
        return chunk
    return replace(chunk, finish=finish, cached_tokens=0, media_tokens=0)
