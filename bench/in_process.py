"""Target 1: CPU per token from a decoded request to bytes, without sockets and event loop.

The full path is accept → decoder → stream → frames, or → fold → body, with the
product's own parts put together as `run/loop.py` and `http/projecting.py` do. The floor
is what any server must do: encode each text as JSON and put ready bytes around.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import msgspec
from msgspec import Struct

from antiphon.apis.chat.accept import accept
from antiphon.apis.chat.answer import Answer
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.stream import Stream
from antiphon.apis.envelope import Envelope
from antiphon.core.chunks import Chunk
from antiphon.core.events import Event
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, random_id
from antiphon.decode.table import Table
from antiphon.dialects.hermes import HERMES
from antiphon.http.projecting import frame
from bench.measure import Figure, take_turns
from bench.scenario import CASES, PLAIN, Case

LENGTHS = (256, 1024, 4096, 16384)
_SAMPLE = 16384
"""Tokens in one sample, at least: enough to be far above the clock's resolution."""

_TABLE = Table(HERMES.grammar)
_TABLE_WITHOUT_CALLS = Table(HERMES.grammar.without_calls())
_MARK = "\ue000"
_encode = msgspec.json.Encoder().encode

Subject = tuple[str, int, str]
"""A case, how many tokens, a path."""


class Row(Struct, frozen=True):
    """One case at one length: µs of CPU per token, and how many times the floor that is."""

    case: str
    tokens: int
    stream: Figure
    fold: Figure
    floor: Figure
    stream_to_floor: float
    fold_to_floor: float


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
    """What a stream sends in each of an engine's steps; the rest of the last step's included."""
    stream = Stream(_envelope(request), 1, accept(request, "bench").view)
    decoder = _decoder(request)
    sent = [frame(stream.push(0, _events(decoder, chunk))) for chunk in chunks]
    sent.append(frame(stream.finish()))
    return sent


def answer(request: ChatRequest, chunks: list[Chunk]) -> bytes:
    """The body of the full answer."""
    decoder = _decoder(request)
    folded = Answer(_envelope(request), 1)
    for chunk in chunks:
        folded.push(0, _events(decoder, chunk))
    return folded.body()


def _stream(request: ChatRequest, chunks: list[Chunk]) -> None:
    stream = Stream(_envelope(request), 1, accept(request, "bench").view)
    decoder = _decoder(request)
    for chunk in chunks:
        frame(stream.push(0, _events(decoder, chunk)))
    frame(stream.finish())


def _floor(request: ChatRequest, chunks: list[Chunk]) -> None:
    before, after = _content_frame()
    for chunk in chunks:
        _sent = before + _encode(chunk.text) + after


@cache
def _content_frame() -> tuple[bytes, bytes]:
    """What Antiphon sends around each text."""
    request = msgspec.json.decode(PLAIN.request(stream=True), type=ChatRequest)
    _role, content, _end = payloads(request, [Chunk(_MARK)])[0].split(b"\n\n")
    before, after = content.split(_encode(_MARK))
    return before, after + b"\n\n"


def _decoder(request: ChatRequest) -> Decoder:
    turn = accept(request, "bench").turn
    table = _TABLE if turn.tools else _TABLE_WITHOUT_CALLS
    return Decoder(table, stop=turn.stop, ids=ids_by(HERMES.ids))


def _events(decoder: Decoder, chunk: Chunk) -> list[Event]:
    events = decoder.feed(chunk)
    if chunk.finish:
        events += decoder.finish(chunk.finish)
    return events


def _envelope(request: ChatRequest) -> Envelope:
    return Envelope(random_id("chatcmpl-", 24), request.model, 1_700_000_000, 10)


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
    stream, fold, floor = (figures[case.name, tokens, path] for path in _PATHS)
    return Row(
        case.name,
        tokens,
        stream,
        fold,
        floor,
        stream_to_floor=round(stream.best / floor.best, 2),
        fold_to_floor=round(fold.best / floor.best, 2),
    )


_PATHS: dict[str, Callable[[ChatRequest, list[Chunk]], object]] = {
    "stream": _stream,
    "fold": answer,
    "floor": _floor,
}
