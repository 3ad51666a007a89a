"""`python bench/compare.py TREE …`: is a trick worth its lines? Source trees by turns, in one run.

    cp -r src /tmp/plain && $EDITOR /tmp/plain/antiphon/…      # the same without the trick
    python bench/compare.py /tmp/plain

Each tree, and the `src` of this checkout, gets servers of its own, which play the same script. They take
turns, in a random order. Each row is the CPU of a server per unit of work as a multiple of that of `src`: of
the best quarter of the rounds, and the median of all pairs. A busy machine disturbs single rounds, and hardly
the ratios of many; a copy of `src` shows by how much. Two servers with the same code may differ by 3 %, by
where their memory is: so each tree has several, one after the other.

A trick stays where a row is 3 % worse without it, or more, and a comment at the trick names the row.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
import uvloop
from msgspec import Struct
from msgspec.structs import replace

from bench.client import Load, drive, http_request
from bench.measure import cpu_seconds, percentile
from bench.over_http import answers
from bench.scenario import CASES, FULL, PLANS, script_line
from bench.servers import Server, antiphon, running

HERE = Path(__file__).parent.parent / "src"
CALL = CASES[2]
"""Reasoning, and a call with a long string."""
CALL_PROMPT = "Write a file."
STREAM_TOKENS = 256
ANSWERS = 512
QUARTER = 25
"""Percent of the rounds that are better than the one that counts."""


class Row(Struct, frozen=True):
    """A kind of work, and the units of work in each answer."""

    name: str
    load: Load
    units: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE", help="a folder with the package")
    parser.add_argument("--base", type=Path, default=HERE, help="the tree that they are compared with: src")
    parser.add_argument("--rounds", type=int, default=20, help="with each server")
    parser.add_argument("--servers", type=int, default=3, help="of each tree")
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT", help="rows with it in their names")
    options = parser.parse_args(arguments)
    trees = [tree.resolve() for tree in (options.base, *options.trees)]
    lines = [*(plan.line for plan in PLANS), script_line(CALL.tokens(STREAM_TOKENS), CALL_PROMPT)]
    samples: dict[str, list[list[float]]] = {}
    for _ in range(options.servers):
        with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            command = stack.enter_context(antiphon(lines))
            servers = [stack.enter_context(running(str(tree), command, tree=tree)) for tree in trees]
            for row in runner.run(_rows(servers[0])):
                if any(text in row.name for text in options.only):
                    taken = runner.run(_samples(servers, row, options.rounds))
                    known = samples.setdefault(row.name, [[] for _ in trees])
                    for mine, new in zip(known, taken, strict=True):
                        mine.extend(new)
    for name, (first, *others) in samples.items():
        print(f"{name}: {percentile(first, QUARTER):.2f} µs")
        for tree, taken in zip(trees[1:], others, strict=True):
            pairs = median(mine / base for mine, base in zip(taken, first, strict=True))
            best = percentile(taken, QUARTER) / percentile(first, QUARTER)
            print(f"  {best:.3f} quarter  {pairs:.3f} pairs  {tree.name}")
    return 0


async def _rows(server: Server) -> list[Row]:
    chat = FULL.request(stream=True)
    fields = msgspec.json.decode(chat)
    response = {"model": fields["model"], "input": FULL.prompt, "stream": True, "store": False}
    message = {**fields, "max_tokens": 2 * STREAM_TOKENS}
    call = CALL.request(stream=True, prompt=CALL_PROMPT)
    done = b"data: [DONE]\n\n"
    streams = {
        "chat": await _stream(server, http_request(chat), done),
        "Responses": await _stream(server, _post("/v1/responses", response), done),
        "Messages": await _stream(server, _post("/v1/messages", message), b'{"type":"message_stop"}\n\n'),
        "chat with reasoning and a call": await _stream(server, http_request(call), done),
    }
    return [
        *(Row(f"a token of {name}, 64 streams", load, STREAM_TOKENS) for name, load in streams.items()),
        Row("a token of chat, 256 streams", replace(streams["chat"], connections=256), STREAM_TOKENS),
        Row("a full answer", answers(ANSWERS), 1),
    ]


def _post(path: str, body: object) -> bytes:
    return http_request(msgspec.json.encode(body)).replace(b"/v1/chat/completions", path.encode(), 1)


async def _stream(server: Server, request: bytes, end: bytes) -> Load:
    """Streams with as many events as the first, which is requested here."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
    writer.write(request)
    try:
        events = (await reader.readuntil(end)).count(b"data: ")
    finally:
        writer.close()
    return Load(request, 64, 1, b"data: ", events, end)


async def _samples(servers: Sequence[Server], row: Row, rounds: int) -> list[list[float]]:
    """µs of CPU for a unit of work of each server, in each round after the first, a warm-up."""
    samples: list[list[float]] = [[] for _ in servers]
    random = Random(0)  # noqa: S311 - no secret
    for number in range(rounds + 1):
        turns = [*zip(servers, samples, strict=True)]
        random.shuffle(turns)  # who follows whom, and has warm caches, is left to chance
        for server, taken in turns:
            before = cpu_seconds(server.pid)
            tally = await drive(row.load, server.port)
            if number:
                used = cpu_seconds(server.pid) - before
                taken.append(used * 1e6 / (tally.answers * row.units))
    return samples


if __name__ == "__main__":
    sys.exit(main())
