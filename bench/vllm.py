"""`python bench/vllm.py`: the cost of a token over HTTP with vLLM's engine, compared with vLLM's own server.

Both serve the same model, by the same vLLM, and get the same requests from the same client, in turns. So
does a floor (`vllm_floor.py`), the engine with a bare protocol: no layer could take less. The CPU time, user
and kernel, of the process with the connections is measured: vLLM computes in others. So any model can be
used, here a small one with random weights. It must not be too small: vLLM's server sends several tokens in
one event if it cannot keep up with the engine, and events per token are printed with the figures. The client
rests between two looks at its connections, because waking it would be measured, too. A write by TCP over
loopback takes the kernel twice as long as one to a Unix socket (`--unix-sockets`), see README.md.

It needs the environment of `make test-vllm`, and uses the tokenizer of its model.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct

from bench.chart import Bar, Chart
from bench.client import Address, Load, drive, http_request
from bench.measure import Figure, cpu_seconds, figure
from bench.report import Machine, Target, target_table
from bench.vllm_floor import asked
from bench.vllm_servers import (
    BORROWED,
    Command,
    antiphon_command,
    engine_words,
    free_port,
    listening,
    running,
    vllm_command,
    write_model,
)

ROUND_SECONDS = 600
TOKENS = 512
"""Tokens of each connection in a round, if an answer is not longer: clients keep their connections."""
REST = 0.005
"""Seconds between two looks of the client: one that never sleeps would take a core from the engine."""
LIMIT = 0.25
"""Antiphon's share of the cost of vLLM's server, with the most streams: at least four times cheaper.

With few streams each step of the engine wakes the server for few tokens: the floor takes more than this.
"""

ARGUMENTS = {"max_model_len": "2048", "max_num_seqs": "64"}
"""Engine arguments of vLLM's, the same for both."""

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 2048,
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
    """µs of CPU per token for a number of streams with a number of tokens, requests included.

    `ratio` is vLLM's figure divided by Antiphon's, `most` is vLLM's divided by the floor's.
    """

    streams: int
    tokens: int
    antiphon: "Cost"
    vllm: "Cost"
    floor: "Cost"
    ratio: float
    most: float


class Report(Struct, frozen=True):
    """Everything that was measured."""

    machine: Machine
    targets: list[Target]
    rows: list[Row]


Kind = tuple[int, int]
"""How many streams, of how many tokens."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="keep the figures for the chart")
    parser.add_argument("--unix-sockets", action="store_true", help="connect by them, and not by TCP")
    parser.add_argument("--tokenizer", type=Path, default=BORROWED, help="a folder with tokenizer.json")
    options = parser.parse_args(arguments)
    kinds = [(streams, tokens) for tokens in options.tokens for streams in options.streams]
    with TemporaryDirectory(prefix="antiphon-bench-") as folder:
        model = write_model(Path(folder), options.tokenizer, SMALL)
        commands = {
            "antiphon": antiphon_command(model, ARGUMENTS, "--store", "memory"),
            "vllm": vllm_command(model, ARGUMENTS),
            "floor": _floor(model, options.tokens),
        }
        addresses = {name: Path(folder) / name if options.unix_sockets else free_port() for name in commands}
        figures = _measured(commands, addresses, kinds, options.rounds)
    rows = [_row(kind, figures[kind]) for kind in kinds]
    most = max(options.streams)
    worst = min((row for row in rows if row.streams == most), key=lambda row: row.ratio)
    share = f"share of vLLM's server's cost, {most} streams"
    target = Target(share, round(1 / worst.ratio, 3), LIMIT)
    report = Report(Machine.here(), [target], rows)
    if options.save:
        _chart(rows[-1]).save("vllm")
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(_table(report)))
    return 0


def _chart(row: Row) -> Chart:
    medians = {"Antiphon": row.antiphon, "vLLM's own server": row.vllm, "least possible": row.floor}
    title = f"CPU for a streamed token in front of vLLM, {row.streams} streams of {row.tokens} tokens"
    bars = tuple(Bar(name, cost.cpu.median) for name, cost in medians.items())
    return Chart(title, "µs", datetime.now(UTC).date().isoformat(), bars)


def _row(kind: Kind, costs: Mapping[str, Cost]) -> Row:
    vllm = costs["vllm"].cpu.median
    ratios = (round(vllm / costs[name].cpu.median, 2) for name in ("antiphon", "floor"))
    return Row(*kind, costs["antiphon"], costs["vllm"], costs["floor"], *ratios)


def _floor(model: Path, tokens: Sequence[int]) -> Command:
    start = [sys.executable, "-m", "bench.vllm_floor", str(model), *engine_words(ARGUMENTS)]
    return lambda address: [*start, *listening(address), "--tokens", *map(str, tokens)]


def _measured(
    commands: Mapping[str, Command],
    addresses: Mapping[str, Address],
    kinds: Sequence[Kind],
    rounds: int,
) -> dict[Kind, dict[str, Cost]]:
    """The cost of a token, for each server. They take turns: a slow minute of the machine hits all."""
    with ExitStack() as stack:
        servers = {
            name: (stack.enter_context(running(command, addresses[name])), addresses[name])
            for name, command in commands.items()
        }
        for pid, address in servers.values():  # a warm-up: now they have run every line of their code
            _round(pid, address, 4, kinds[0][1])
        return {kind: _taking_turns(servers, kind, rounds) for kind in kinds}


def _taking_turns(servers: Mapping[str, tuple[int, Address]], kind: Kind, rounds: int) -> dict[str, Cost]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, (pid, address) in servers.items():
            taken[name].append(_round(pid, address, *kind))
    return {name: _cost(each) for name, each in taken.items()}


def _cost(rounds: Sequence[tuple[float, float]]) -> Cost:
    return Cost(figure([cpu for cpu, _ in rounds]), round(min(events for _, events in rounds), 2))


def _round(pid: int, address: Address, streams: int, tokens: int) -> tuple[float, float]:
    """µs and events per token."""
    load = _load(streams, tokens)
    before = cpu_seconds(pid)
    tally = asyncio.run(drive(load, address))
    written = tally.answers * tokens
    return (cpu_seconds(pid) - before) * 1e6 / written, tally.events / written


def _load(streams: int, tokens: int) -> Load:
    counted = b'"completion_tokens":%d' % tokens
    return Load(
        http_request(asked(tokens)),
        streams,
        max(1, TOKENS // tokens),
        counted,
        1,
        b"data: [DONE]\n\n",
        rest=REST,
        seconds=ROUND_SECONDS,
    )


def _table(report: Report) -> Iterator[str]:
    machine = report.machine
    yield f"antiphon {machine.antiphon}, Python {machine.python}, {machine.cores} cores, load {machine.load}"
    columns = "".join(f"{name:>10}" for name in ("Antiphon", "vLLM", "floor", "ratio", "most"))
    yield f"\n{'µs of CPU per token: streams, tokens':38}{columns}    events per token"
    for row in report.rows:
        figures = "".join(f"{cost.cpu.median:10.1f}" for cost in (row.antiphon, row.vllm, row.floor))
        events = f"{row.antiphon.events:8.2f} /{row.vllm.events:5.2f}"
        yield f"{row.streams:>8}{row.tokens:>10}{'':20}{figures}{row.ratio:10.2f}{row.most:10.2f}{events}"
    yield from target_table(report.targets)


if __name__ == "__main__":
    sys.exit(main())
