"""`python bench/vllm.py`: what a token over HTTP costs in front of vLLM's engine, beside vLLM's own server.

Both serve the same model, by the same vLLM, one after the other, and get the same requests from the same
client. What counts is the CPU, user and kernel, of the process that has the connections: vLLM
computes in others. So the model may be of any kind, and is a small one with random weights. It must not be
too small: vLLM's server sends several tokens in one event where it cannot keep up with the engine, and
events per token are told beside the figures.

It needs the environment of `make test-vllm`, and borrows the tokenizer of its model.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from urllib.error import URLError

if __name__ == "__main__":
    # Run as a script, Python looks for modules beside it; ours are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct

from bench.client import Load, drive, http_request
from bench.measure import Figure, cpu_seconds, figure
from bench.report import Machine, Target, target_table

ROOT = Path(__file__).parent.parent
BORROWED = ROOT / ".venv-vllm" / "model"
NAME = "bench"
TOKENS = 128
START_SECONDS = 600
LIMIT = 0.25
"""Antiphon's share of what vLLM's server takes: at least four times cheaper."""

ARGUMENTS = {
    "dtype": "bfloat16",
    "load_format": "dummy",
    "max_model_len": "1024",
    "gpu_memory_utilization": "0.2",
    "max_num_seqs": "64",
}
"""Engine arguments of vLLM's, the same for both."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
"""The configuration of the model."""


class Cost(Struct, frozen=True):
    """µs of CPU per token, and how many events were sent for each."""

    cpu: Figure
    events: float


class Row(Struct, frozen=True):
    """µs of CPU per token at so many streams, requests included. `ratio` is vLLM's figure by Antiphon's."""

    streams: int
    antiphon: "Cost"
    vllm: "Cost"
    ratio: float


class Report(Struct, frozen=True):
    """Everything that was measured."""

    machine: Machine
    targets: list[Target]
    rows: list[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizer", type=Path, default=BORROWED, help="a folder with tokenizer.json")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="antiphon-bench-") as folder:
        model = _model(Path(folder), options.tokenizer)
        figures = {
            name: _measured(command(model), options.streams, options.rounds)
            for name, command in {"vllm": _vllm, "antiphon": _antiphon}.items()
        }
    rows = [
        Row(
            streams,
            figures["antiphon"][streams],
            figures["vllm"][streams],
            round(figures["vllm"][streams].cpu.median / figures["antiphon"][streams].cpu.median, 2),
        )
        for streams in options.streams
    ]
    worst = min(rows, key=lambda row: row.ratio)
    target = Target("Antiphon's cost as a share of vLLM's server's", round(1 / worst.ratio, 3), LIMIT)
    report = Report(Machine.here(), [target], rows)
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(_table(report)))
    return 0


def _model(folder: Path, tokenizer: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder


def _vllm(model: Path) -> Callable[[int], list[str]]:
    given = [word for key, value in ARGUMENTS.items() for word in ("--" + key.replace("_", "-"), value)]
    server = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--served-model-name", NAME]
    quiet = ["--disable-log-stats", "--disable-uvicorn-access-log", "--enforce-eager"]
    return lambda port: [*server, *given, *quiet, "--host", "127.0.0.1", "--port", str(port)]


def _antiphon(model: Path) -> Callable[[int], list[str]]:
    given = [
        word
        for each in (*map("=".join, ARGUMENTS.items()), "enforce_eager=true")
        for word in ("--vllm", each)
    ]
    options = ["--engine", "vllm", "--model-name", NAME, "--store", "memory", "--log-level", "error"]
    start = [sys.executable, "-m", "antiphon", "serve", str(model)]
    return lambda port: [*start, *given, *options, "--port", str(port)]


def _measured(command: Callable[[int], list[str]], streams: Sequence[int], rounds: int) -> dict[int, Cost]:
    """What a token costs, by the number of streams."""
    with _running(command) as (pid, port):
        asyncio.run(drive(_load(4, 1), port))  # now it has seen every line of its code
        return {count: _cost([_round(pid, port, count) for _ in range(rounds)]) for count in streams}


def _cost(rounds: Sequence[tuple[float, float]]) -> Cost:
    return Cost(figure([cpu for cpu, _ in rounds]), round(min(events for _, events in rounds), 2))


def _round(pid: int, port: int, streams: int) -> tuple[float, float]:
    """µs and events per token."""
    load = _load(streams, max(1, 16 // streams))
    before = cpu_seconds(pid)
    tally = asyncio.run(drive(load, port))
    tokens = tally.answers * TOKENS
    return (cpu_seconds(pid) - before) * 1e6 / tokens, tally.events / tokens


def _load(streams: int, requests: int) -> Load:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Sing."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": TOKENS,
    }
    counted = b'"completion_tokens":%d' % TOKENS
    return Load(
        http_request(json.dumps(body).encode()),
        streams,
        requests,
        counted,
        1,
        b"data: [DONE]\n\n",
        awake=False,
    )


@contextmanager
def _running(command: Callable[[int], list[str]]) -> Iterator[tuple[int, int]]:
    """The process that has the connections of a server, and its port, while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**_environment(), **ENVIRONMENT, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command(port), cwd=ROOT, env=environment, stdout=sys.stderr)  # noqa: S603
    try:
        until = monotonic() + START_SECONDS
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or monotonic() > until:
                raise RuntimeError(f"{command(port)[0]} did not start")
            sleep(0.5)
        yield process.pid, port
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Ours, without settings of Antiphon's or vLLM's: they must not change what is measured."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("ANTIPHON_", "VLLM_"))}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except URLError:
        return False


def _table(report: Report) -> Iterator[str]:
    machine = report.machine
    yield f"antiphon {machine.antiphon}, Python {machine.python}, {machine.cores} cores, load {machine.load}"
    columns = f"{'Antiphon':>10}{'vLLM':>10}{'ratio':>8}{'events per token':>20}"
    yield f"\n{'µs of CPU per token, streams':30}{columns}"
    for row in report.rows:
        figures = f"{row.antiphon.cpu.median:10.1f}{row.vllm.cpu.median:10.1f}{row.ratio:8.2f}"
        yield f"{row.streams:<30}{figures}{row.antiphon.events:12.2f} /{row.vllm.events:5.2f}"
    yield from target_table(report.targets)


if __name__ == "__main__":
    sys.exit(main())
