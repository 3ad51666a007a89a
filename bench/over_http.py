"""Targets 2, 3 and 4: the cost of a server with Antiphon over loopback, compared with the floor.

Both servers run in their own processes, get the same load from the same client, and alternate. The CPU time
of the server is measured (from /proc, user and kernel); the tokens per second also depend on the client.
"""

import asyncio

import msgspec
import uvloop
from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.chat.schema import ChatRequest
from bench.client import Load, Tally, drive, http_request
from bench.in_process import payloads
from bench.measure import Figure, cpu_seconds, figure, percentile
from bench.scenario import FULL, PACED, PLAIN, SHORT, Plan
from bench.servers import Server, both, running

_PACED_STREAMS = 256
_EVENT = b"data: "
_END = b"data: [DONE]\n\n"


class Effort(Struct, frozen=True):
    """The size of a measurement: rounds, and tokens (per number of streams) and answers in each."""

    rounds: int = 5
    streams: tuple[int, ...] = (1, 64, 256)
    tokens: int = 131072
    answers: int = 8192
    paced_rounds: int = 2
    paced_requests: int = 4


QUICK = Effort(rounds=2, tokens=32768, answers=1024, paced_rounds=1, paced_requests=2)


class Throughput(Struct, frozen=True):
    """Target 2: µs of server CPU per token, and tokens per second of wall time, at this number of streams.

    `libraries` is that of `libraries.py`, which decodes nothing; `least` is its multiple of the floor.
    """

    streams: int
    antiphon: Figure
    floor: Figure
    libraries: Figure
    ratio: float
    least: float
    antiphon_per_second: int
    floor_per_second: int


class NonStreaming(Struct, frozen=True):
    """Target 3: µs of server CPU per request with a one-token answer.

    `asgi` and `libraries` are those of `libraries.py`: HTTP and JSON alone, and with a template and a log.
    """

    antiphon: Figure
    floor: Figure
    asgi: Figure
    libraries: Figure
    added: float


class Wait(Struct, frozen=True):
    """Milliseconds until the first bytes of an answer."""

    p50: float
    p99: float


class FirstToken(Struct, frozen=True):
    """Target 4: the delay at this number of paced streams, with requests one by one or all at once."""

    streams: int
    arrival: str
    antiphon: Wait
    floor: Wait
    added: Wait


class Result(Struct, frozen=True):
    """Targets 2 to 4."""

    throughput: list[Throughput]
    non_streaming: NonStreaming
    first_token: list[FirstToken]


class _Run(Struct, frozen=True):
    """One load on one server."""

    cpu: float
    tally: Tally


Runs = dict[str, list[_Run]]
"""The runs on each server, by its name."""


def measure(effort: Effort = Effort()) -> Result:  # noqa: B008 (frozen)
    """Start both servers and measure all figures."""
    with (
        both() as servers,
        running("asgi", ("-m", "bench.libraries")) as asgi,
        running("libraries", ("-m", "bench.libraries", "work")) as libraries,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):

        def turns(load: Load, rounds: int, *others: Server) -> Runs:
            runs: Runs = {server.name: [] for server in (*servers, *others)}
            for _ in range(rounds):
                for server in (*servers, *others):
                    runs[server.name].append(runner.run(_run(server, load)))
            return runs

        turns(_streams(FULL, 16, 2), 1, libraries)  # a warm-up: now all have run every line of their code
        return Result(
            [
                _throughput(streams, turns(_full(streams, effort), effort.rounds, libraries))
                for streams in effort.streams
            ],
            _non_streaming(turns(answers(effort.answers), effort.rounds, asgi, libraries)),
            [
                _first_token("spread", turns(_paced(effort.paced_requests), effort.paced_rounds)),
                _first_token("at once", turns(_paced_at_once(), effort.paced_rounds)),
            ],
        )


async def _run(server: Server, load: Load) -> _Run:
    before = cpu_seconds(server.pid)
    tally = await drive(load, server.port)
    return _Run(cpu_seconds(server.pid) - before, tally)


def _full(streams: int, effort: Effort) -> Load:
    """At full speed. A single stream is slow, and gets fewer tokens."""
    return _streams(FULL, streams, -(-effort.tokens // FULL.tokens // max(streams, 4)))


def _paced(requests: int) -> Load:
    """Streams that begin evenly over the duration of one."""
    spread = PACED.tokens * PACED.delay_ms / 1000
    return replace(_streams(PACED, _PACED_STREAMS, requests), spread=spread, rest=None)


def _paced_at_once() -> Load:
    return replace(_streams(PACED, _PACED_STREAMS, 1), rest=None)


def _streams(plan: Plan, connections: int, requests: int) -> Load:
    body = plan.request(stream=True)
    wire = msgspec.json.decode(body, type=ChatRequest)
    events = b"".join(payloads(wire, PLAIN.chunks(plan.tokens))).count(_EVENT)
    return Load(http_request(body), connections, requests, _EVENT, events, _END)


def answers(count: int) -> Load:
    """As many answers, over 16 connections."""
    request = http_request(SHORT.request(stream=False))
    return Load(request, 16, count // 16, b'"finish_reason":"stop"', 1, b"}")


def _throughput(streams: int, runs: Runs) -> Throughput:
    per_token = {name: figure([_per(run, FULL.tokens) for run in of]) for name, of in runs.items()}
    per_second = {
        name: round(max(run.tally.answers * FULL.tokens / run.tally.seconds for run in of))
        for name, of in runs.items()
    }
    ratio, least = [
        round(per_token[name].median / per_token["floor"].median, 2) for name in ("antiphon", "libraries")
    ]
    return Throughput(
        streams,
        **per_token,
        ratio=ratio,
        least=least,
        antiphon_per_second=per_second["antiphon"],
        floor_per_second=per_second["floor"],
    )


def _non_streaming(runs: Runs) -> NonStreaming:
    of = {name: figure([_per(run, 1) for run in each]) for name, each in runs.items()}
    return NonStreaming(**of, added=round(of["antiphon"].median - of["floor"].median, 1))


def _first_token(arrival: str, runs: Runs) -> FirstToken:
    antiphon, floor = (_wait(runs[name]) for name in ("antiphon", "floor"))
    added = Wait(round(antiphon.p50 - floor.p50, 2), round(antiphon.p99 - floor.p99, 2))
    return FirstToken(_PACED_STREAMS, arrival, antiphon, floor, added)


def _per(run: _Run, units: int) -> float:
    return run.cpu * 1e6 / (run.tally.answers * units)


def _wait(runs: list[_Run]) -> Wait:
    first = [seconds * 1000 for run in runs for seconds in run.tally.first]
    return Wait(round(percentile(first, 50), 2), round(percentile(first, 99), 2))
