"""Target 1: CPU per token from a decoded request to bytes, without sockets.

The path is that of the product: accept → generation → driver → projection → frames, or → body. Only both
ends are replaced: an engine that pushes prepared chunks, one at a time, and a client that keeps its events.
The floor is the minimum of any server: to encode each text as JSON and add constant bytes around it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, cast

import msgspec
import uvloop
from msgspec import Struct

from antiphon.apis.chat.accept import accept
from antiphon.apis.chat.answer import ChatCompletionBuilder
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.envelope import Envelope
from antiphon.apis.messages.accept import MessageContext
from antiphon.apis.messages.accept import accept as accept_message
from antiphon.apis.messages.schema import CreateMessage, RequestMessage, Thinking
from antiphon.apis.messages.stream import MessageStream
from antiphon.app.ids import random_id
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.plain_tokens import DeltaEncoder, DeltaWriter
from antiphon.core.turn import Turn
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by
from antiphon.decode.table import Table
from antiphon.dialects.hermes import HERMES
from antiphon.engines.engine import Engine, GenerationRequest, ModelCard, Prompt, Receiver, Work
from antiphon.run.drive import Client, Driver, Projection
from antiphon.run.generation import GenerationRun, Interceptors
from bench.measure import Figure, take_turns
from bench.scenario import CASES, PLAIN, Case

LENGTHS = (256, 1024, 4096, 16384)
_SAMPLE = 16384
"""Tokens in one sample, at least: enough to be far above the clock's resolution."""

_TABLE = Table(HERMES.grammar)
_TABLE_WITHOUT_CALLS = Table(HERMES.grammar.without_calls())
_PROMPT = Prompt("Sing.", (1,) * 10)
_MARK = "\ue000"
_encode = msgspec.json.Encoder().encode

Subject = tuple[str, int, str]
"""A case, how many tokens, a path."""


class Row(Struct, frozen=True):
    """One case at one length: µs of CPU per token, and the multiple of the floor.

    `messages` is a stream of Anthropic's API, compared with that of a chat.
    """

    case: str
    tokens: int
    stream: Figure
    fold: Figure
    messages: Figure
    floor: Figure
    stream_to_floor: float
    fold_to_floor: float
    messages_to_stream: float


class Growth(Struct, frozen=True):
    """Cost per token at the second length, as a multiple of that at the first."""

    case: str
    shorter: int
    longer: int
    stream: float
    fold: float


class Result(Struct, frozen=True):
    """All of target 1."""

    rows: list[Row]
    growth: list[Growth]


def measure(lengths: Sequence[int] = LENGTHS, rounds: int = 7, sample: int = _SAMPLE) -> Result:
    """Run every case at every length, by turns."""
    subjects: dict[Subject, tuple[Callable[[], object], int]] = {}
    for case in CASES:
        request = msgspec.json.decode(case.request(stream=True), type=ChatRequest)
        for length in lengths:
            chunks = case.chunks(length)
            for name, path in _PATHS.items():
                subjects[case.name, length, name] = (partial(path, request, chunks), length)
    figures = take_turns(subjects, rounds, sample)
    rows = [_row(case, length, figures) for case in CASES for length in lengths]
    return Result(rows, [_growth(case, rows) for case in CASES])


def payloads(request: ChatRequest, chunks: list[Chunk]) -> list[bytes]:
    """The bytes that a stream sends in each of an engine's steps, then the rest."""
    accepted = accept(request, "bench")
    stream = ChatCompletionStream(_envelope(request), 1, accepted.presentation)
    return _drive(accepted.turn, stream, chunks, _Client()).sent


def answer(request: ChatRequest, chunks: list[Chunk]) -> bytes:
    """The body of the full answer."""
    accepted = accept(request, "bench")
    return _drive(accepted.turn, ChatCompletionBuilder(_envelope(request), 1), chunks, _Client()).body


def messages(request: ChatRequest, chunks: list[Chunk]) -> list[bytes]:
    """The bytes of a stream of Anthropic's API for the same request."""
    accepted = accept_message(_message(request), MessageContext("bench"))
    stream = MessageStream(_envelope(request), accepted.presentation, str)
    return _drive(accepted.turn, stream, chunks, _Client()).sent


def _message(request: ChatRequest) -> CreateMessage:
    """The same request, in Anthropic's API."""
    functions = [tool["function"] for tool in request.tools or ()]
    return CreateMessage(
        model=request.model,
        max_tokens=max(LENGTHS),
        messages=[RequestMessage(each.role, str(each.content)) for each in request.messages],
        tools=[{"name": each["name"], "input_schema": each["parameters"]} for each in functions],
        thinking=Thinking("adaptive"),
        stream=True,
    )


class _Client(Client):
    """Keeps its events, as server-sent events."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.body = b""

    def write(self, lines: list[bytes]) -> None:
        self.sent.append(b"".join(lines))

    def delta_writer(self, choice: int, encode: DeltaEncoder) -> DeltaWriter:
        return lambda text, tokens: self.sent.append(encode(text, tokens))

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        if lines:
            self.sent.append(b"".join(lines))
        self.body = body()


class _Ready:
    """An engine that pushes these chunks, and the work that it does. See `engines.engine.Engine`."""

    card = ModelCard("ready", 100_000)

    def __init__(self, chunks: list[Chunk]) -> None:
        self._chunks = chunks

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        asyncio.get_running_loop().call_soon(self._play, receiver)
        return self

    def _play(self, receiver: Receiver) -> None:
        for chunk in self._chunks:
            receiver.push([chunk])

    def cancel(self) -> None:
        pass


class _Source:
    """One generation, whose prompt is rendered already. See `run.drive.Source`."""

    def __init__(self, turn: Turn, chunks: list[Chunk]) -> None:
        engine, request = cast(Engine, _Ready(chunks)), GenerationRequest(_PROMPT, len(chunks))
        decoder = _decoder(turn)
        self._generation = GenerationRun(engine, request, decoder, Interceptors(), Accumulator())

    async def run(self, output: Driver) -> None:
        output.set_prompts([_PROMPT])
        await self._generation.run(output, 0)

    def abandon(self) -> Iterable[tuple[int, Any]]:
        yield 0, self._generation.abandon()


def _drive(turn: Turn, projection: Projection, chunks: list[Chunk], client: _Client) -> _Client:
    _loop().run_until_complete(Driver(_Source(turn, chunks), projection).run(client))
    return client


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop for all answers."""
    return uvloop.new_event_loop()


def _floor(request: ChatRequest, chunks: list[Chunk]) -> None:
    before, after = _content_frame()
    for chunk in chunks:
        _sent = before + _encode(chunk.text) + after


@cache
def _content_frame() -> tuple[bytes, bytes]:
    """The bytes that Antiphon sends around each text."""
    request = msgspec.json.decode(PLAIN.request(stream=True), type=ChatRequest)
    chunks = [Chunk(_MARK), Chunk("", finish=Finish(FinishReason.STOP))]
    _role, content, _end = payloads(request, chunks)[0].split(b"\n\n")
    before, after = content.split(_encode(_MARK))
    return before, after + b"\n\n"


def _decoder(turn: Turn) -> Decoder:
    table = _TABLE if turn.tools else _TABLE_WITHOUT_CALLS
    return Decoder(table, stop=turn.stop, ids=ids_by(HERMES.ids))


def _envelope(request: ChatRequest) -> Envelope:
    return Envelope(random_id("chatcmpl-", 24), request.model, 1_700_000_000)


def _growth(case: Case, rows: list[Row]) -> Growth:
    """From 1024 tokens (or the shortest length there is) to the longest."""
    mine = {row.tokens: row for row in rows if row.case == case.name}
    longer = mine[max(mine)]
    shorter = mine.get(1024, mine[min(mine)])
    return Growth(
        case.name,
        shorter.tokens,
        longer.tokens,
        stream=round(longer.stream.best / shorter.stream.best, 3),
        fold=round(longer.fold.best / shorter.fold.best, 3),
    )


def _row(case: Case, tokens: int, figures: dict[Subject, Figure]) -> Row:
    stream, fold, messages, floor = (figures[case.name, tokens, path] for path in _PATHS)
    return Row(
        case.name,
        tokens,
        stream,
        fold,
        messages,
        floor,
        stream_to_floor=round(stream.best / floor.best, 2),
        fold_to_floor=round(fold.best / floor.best, 2),
        messages_to_stream=round(messages.best / stream.best, 2),
    )


_PATHS: dict[str, Callable[[ChatRequest, list[Chunk]], object]] = {
    "stream": payloads,
    "fold": answer,
    "messages": messages,
    "floor": _floor,
}
