"""`python bench/batches.py`: what a line of a batch costs, compared with the same request over HTTP.

    python bench/batches.py             # 1,000 and 10,000 lines, one or two minutes
    python bench/batches.py --quick

A new server process plays a script, with a SQLite file, for each number of lines. The same short request is
sent over HTTP so often, then as the lines of a batch: the file is uploaded, the batch watched, the results
fetched. What is measured is the CPU time of the server for all of this, and its largest resident memory. The
speed of a machine that others use changes: so the two alternate, and each keeps its best round.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import httpx2 as httpx
import msgspec
from msgspec import Struct

from bench.client import Load, drive, http_request
from bench.measure import cpu_seconds
from bench.report import Target, target_table
from bench.scenario import MODEL, PLAIN, script_line
from bench.servers import Server, antiphon, running

LINES = (1_000, 10_000)
QUICK = (200, 1_000)
TOKENS = 8
CONNECTIONS = 16
POLL_SECONDS = 0.25
ROUNDS = 3
SECONDS = 600
"""A bound for a busy machine."""
PROMPT = "Sing in a word."
MOST_TIMES, MOST_GROWTH_MIB = 1.2, 24.0
"""The targets: the cost of a line, in requests; and how much more memory ten times as many lines may need."""


class Row(Struct, frozen=True):
    """The figures for a number of lines: µs of CPU for a request over HTTP and for a line; MiB of memory."""

    lines: int
    request_us: float
    line_us: float
    before_mib: float
    over_http_mib: float
    batch_mib: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="rough figures")
    options = parser.parse_args(arguments)
    rows = measure(QUICK if options.quick else LINES)
    print("\n".join(table(rows)))
    return 0


def measure(sizes: Sequence[int]) -> list[Row]:
    """A row for each number of lines."""
    return [_measured(lines) for lines in sizes]


def table(rows: Sequence[Row]) -> list[str]:
    """The figures for people."""
    lines = [f"{'lines':>7} {'request':>9} {'line':>9} {'before':>8} {'HTTP':>8} {'batch':>8}"]
    lines += [
        f"{row.lines:7} {row.request_us:6.0f} µs {row.line_us:6.0f} µs "
        f"{row.before_mib:6.1f} M {row.over_http_mib:6.1f} M {row.batch_mib:6.1f} M"
        for row in rows
    ]
    times = rows[-1].line_us / rows[-1].request_us
    growth = _added(rows[-1]) - _added(rows[0])
    targets = [
        Target("a line, as a multiple of a request over HTTP", times, MOST_TIMES),
        Target("MiB that more lines need", growth, MOST_GROWTH_MIB),
    ]
    return [*lines, "", *target_table(targets)]


def _added(row: Row) -> float:
    return row.batch_mib - row.over_http_mib


def _measured(lines: int) -> Row:
    with (
        TemporaryDirectory(prefix="antiphon-bench-") as folder,
        antiphon([script_line(PLAIN.tokens(TOKENS), PROMPT)]) as command,
        running("antiphon", (*command[:-1], f"sqlite:///{folder}/store.db")) as server,
    ):
        before = _peak(server)
        asyncio.run(_over_http(server, lines))  # also warms it up
        over_http = _peak(server)
        request_us, line_us = zip(*(asyncio.run(_round(server, lines)) for _ in range(ROUNDS)), strict=True)
        return Row(lines, min(request_us), min(line_us), before, over_http, _peak(server))


async def _round(server: Server, lines: int) -> tuple[float, float]:
    """µs of CPU for each request, and for each line."""
    return await _over_http(server, lines), await _in_batch(server, lines)


def _peak(server: Server) -> float:
    """The largest resident memory so far, in MiB."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _body() -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}


async def _over_http(server: Server, requests: int) -> float:
    """µs of CPU for each request."""
    each = requests // CONNECTIONS
    request, mark = http_request(msgspec.json.encode(_body())), b'"finish_reason":"stop"'
    load = Load(request, CONNECTIONS, each, mark, 1, b"}", seconds=SECONDS)
    begun = cpu_seconds(server.pid)
    await drive(load, server.port)
    return (cpu_seconds(server.pid) - begun) / (each * CONNECTIONS) * 1e6


async def _in_batch(server: Server, lines: int) -> float:
    """µs of CPU for each line."""
    url = "/v1/chat/completions"
    content = b"".join(
        msgspec.json.encode({"custom_id": f"{number}", "method": "POST", "url": url, "body": _body()}) + b"\n"
        for number in range(lines)
    )
    begun = cpu_seconds(server.pid)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=600) as http:
        form = {"files": {"file": ("lines.jsonl", content)}, "data": {"purpose": "batch"}}
        file = (await http.post("/files", **form)).json()["id"]  # type: ignore[arg-type]
        wanted = {"input_file_id": file, "endpoint": url, "completion_window": "24h"}
        batch = (await http.post("/batches", json=wanted)).json()
        while batch["status"] not in ("completed", "failed"):
            await asyncio.sleep(POLL_SECONDS)
            batch = (await http.get(f"/batches/{batch['id']}")).json()
        if batch["request_counts"]["completed"] != lines:
            raise RuntimeError(f"the batch has not answered all lines: {batch}")
        results = await http.get(f"/files/{batch['output_file_id']}/content")
    if results.text.count("\n") != lines:
        raise RuntimeError("the results are not complete")
    return (cpu_seconds(server.pid) - begun) / lines * 1e6


if __name__ == "__main__":
    sys.exit(main())
