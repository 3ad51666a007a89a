"""CPU per token of a stream under Ray Serve, beside Antiphon's own server.

The engine is scripted, and writes 50 tokens a second to each of 40 streams. Counted is the CPU time of the
processes that a token goes through: the server; Ray's proxy and the replica; HAProxy and the replica.

    .venv-ray/bin/python bench/ray.py
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

sys.path.insert(0, str(Path(__file__).parent.parent))

import msgspec

from bench.client import Load, drive, http_request
from bench.measure import cpu_seconds
from bench.scenario import MODEL
from bench.servers import antiphon, running

STREAMS, TOKENS, DELAY_MS = 40, 250, 20
SCRIPT = msgspec.json.encode({"output": "word ", "tokens": TOKENS, "delay_ms": DELAY_MS})
DIRECT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
}
PARTS = {"proxy": "ray::ProxyActor", "HAProxy": "haproxy -db", "replica": "ray::ServeReplica"}
"""The processes that a token goes through, by a part of their command lines."""
CLUSTER = """
import shutil, socket, sys, tempfile
import ray
from ray import serve
from antiphon.ray import app
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
folder = tempfile.mkdtemp(prefix="ray")
ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False,
         _temp_dir=folder)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(app({"engine": "scripted", "script": sys.argv[1], "model_name": sys.argv[2], "store": "none",
               "parallel": 256}))
print(port, flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
shutil.rmtree(folder, ignore_errors=True)
"""


def load() -> Load:
    """A stream for each connection."""
    messages = [{"role": "user", "content": "Sing."}]
    body = msgspec.json.encode({"model": MODEL, "messages": messages, "stream": True})
    end = b"data: [DONE]\n\n"
    return Load(http_request(body), STREAMS, 1, mark=end, marks=1, end=end, rest=None)


def own_processes(root: int) -> Iterator[int]:
    """A process, and all that come from it."""
    yield root
    for task in Path(f"/proc/{root}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from own_processes(int(child))


def parts_of(root: int) -> dict[str, list[int]]:
    """The processes of each part of a cluster."""
    lines = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for pid in own_processes(root)
    }
    parts = {part: [pid for pid, line in lines.items() if text in line] for part, text in PARTS.items()}
    return {part: pids for part, pids in parts.items() if pids}


@contextmanager
def cluster(variables: Mapping[str, str]) -> Iterator[tuple[int, dict[str, list[int]]]]:
    """A local Ray with one replica: its port, and the processes of its parts."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **variables}
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as script:
        script.write(SCRIPT)
        script.flush()
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", CLUSTER, script.name, MODEL],
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            lines = cast("IO[bytes]", process.stdout)
            yield next(int(line) for line in lines if line.strip().isdigit()), parts_of(process.pid)
        finally:
            process.communicate(timeout=60)  # the end of its input ends it


def measure(port: int, parts: Mapping[str, Sequence[int]], rounds: int) -> dict[str, float]:
    """Microseconds of CPU per token, by part: the least of the rounds."""
    asyncio.run(drive(load(), port))  # warm
    least: dict[str, float] = {}
    for _ in range(rounds):
        before = {part: sum(map(cpu_seconds, pids)) for part, pids in parts.items()}
        asyncio.run(drive(load(), port))
        for part, pids in parts.items():
            spent = (sum(map(cpu_seconds, pids)) - before[part]) * 1e6 / (STREAMS * TOKENS)
            least[part] = min(spent, least.get(part, spent))
    return least


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args(arguments).rounds
    with antiphon([SCRIPT]) as command, running("antiphon", (*command, "--parallel", "256")) as server:
        own = measure(server.port, {"server": [server.pid]}, rounds)
    results = {"antiphon serve": own}
    for name, variables in (("Ray's proxy", {}), ("HAProxy, three variables", DIRECT)):
        with cluster(variables) as (port, parts):
            results[name] = measure(port, parts, rounds)
    floor = own["server"]
    for name, spent in results.items():
        detail = ", ".join(f"{part} {value:.0f}" for part, value in spent.items())
        total = sum(spent.values())
        print(f"{name:25} {total:4.0f} µs of CPU per token, {total / floor:4.1f} times  ({detail})")


if __name__ == "__main__":
    main()
