"""Several processes as one server: CPU per token, the share of each, and the first token of a burst.

The engine is scripted, in each process, and writes as fast as it is read. The client runs on the same
machine: with two cores, what is left for the servers depends on it.

    .venv/bin/python bench/processes.py
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

import msgspec

from bench.client import Load, drive, http_request
from bench.measure import cpu_seconds, percentile
from bench.scenario import MODEL
from bench.servers import Server, antiphon, running

TOKENS, CONNECTIONS, BURST = 400, 32, 256


def load(connections: int) -> Load:
    """A stream for each connection."""
    messages = [{"role": "user", "content": "Sing."}]
    body = msgspec.json.encode({"model": MODEL, "messages": messages, "stream": True})
    end = b"data: [DONE]\n\n"
    return Load(http_request(body), connections, 1, mark=end, marks=1, end=end, rest=None)


def workers(server: Server) -> list[int]:
    """The processes that answer."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    # One process alone has children, too, which work on schemas.
    return [int(pid) for pid in children if b"http.process" in Path(f"/proc/{pid}/cmdline").read_bytes()] or [
        server.pid
    ]


def measure(processes: int, rounds: int, tree: Path) -> str:
    """A line with the figures."""
    script = msgspec.json.encode({"output": "word ", "tokens": TOKENS})
    options = ("none", "--processes", str(processes), "--parallel", str(BURST))  # the store first
    with antiphon([script]) as command, running("antiphon", (*command[:-1], *options), tree=tree) as server:
        pids = workers(server)
        asyncio.run(drive(load(CONNECTIONS), server.port))  # warm
        rates, per_token, firsts = [], [], []
        used = dict.fromkeys(pids, 0.0)
        for _ in range(rounds):
            before = {pid: cpu_seconds(pid) for pid in pids}
            tally = asyncio.run(drive(load(CONNECTIONS), server.port))
            spent = {pid: cpu_seconds(pid) - before[pid] for pid in pids}
            used = {pid: used[pid] + spent[pid] for pid in pids}
            rates.append(CONNECTIONS * TOKENS / tally.seconds)
            per_token.append(sum(spent.values()) * 1e6 / (CONNECTIONS * TOKENS))
            firsts.append(percentile(asyncio.run(drive(load(BURST), server.port)).first, 99))
    shares = " ".join(f"{share / sum(used.values()):.0%}" for share in used.values())
    return (
        f"{processes} {'process  ' if processes == 1 else 'processes'}  {median(rates):8,.0f} tokens/s  "
        f"{median(per_token):5.1f} µs of CPU per token  shares {shares}  "
        f"burst of {BURST}: first token p99 {median(firsts):.2f} s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    tree = Path(__file__).parent.parent / "src"
    for processes in options.processes:
        print(measure(processes, options.rounds, tree), flush=True)


if __name__ == "__main__":
    main()
