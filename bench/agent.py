"""`python bench/agent.py`: the cost of a turn of a coding agent whose history grows, in front of vLLM.

A session has 43 turns, 20 tools, and grows to 142,000 tokens: each turn adds a call and the output of a tool,
and the answer is streamed. It is led in four ways, which take turns so that a slow minute of the machine hits
all: in Chat Completions with vLLM's own server and with Antiphon, where the whole history travels with each
request, and in Responses with Antiphon, by `previous_response_id` over HTTP and on one WebSocket, where only
what is new travels. Each of them has texts of its own, so that none finds the tokens of another in a cache.
Everything that Antiphon does for agents is on: responses are stored, and each compares
its prompt with that of the one before (`comparison_response_id`).

The model has one layer, so that the layer in front of it is what is measured: the CPU time, user and kernel,
of the process with the connections (vLLM computes in others), and the milliseconds to the first token, which
include the engine's work. Later turns wait longer for the engine, and a server has timers whether it waits or
has nothing to do: so the growth of a turn is that without what the same server takes for nothing in the same
time, and the growth with it is printed, too. It needs the environment of `make test-vllm`.
"""

import argparse
import http.client
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, Protocol

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer
from websockets.sync.client import ClientConnection, connect

from bench.chart import Bar, Chart
from bench.measure import cpu_seconds
from bench.report import Machine, Target, target_table
from bench.scenario import MODEL
from bench.vllm_servers import BORROWED, antiphon_command, free_port, running, vllm_command, write_model

TURNS = 43
TOKENS = 142_000
"""Of the prompt of the last turn."""
TOOLS = 20
WAYS = 4
"""In which a session is led."""
ANSWER = 24
"""Tokens of an answer."""
FIFTH = 5
REST = 0.2
"""Seconds after an answer, in which a server does what it still has to do for it."""
IDLE_SECONDS = 20
"""In which it is measured what a server takes for nothing."""
SECONDS = 600

LESS = 0.16
"""Antiphon's share of the CPU of vLLM's server over a whole session: a sixth."""
GROWTH = 1.5
"""The last turn as a multiple of the fifth, where only what is new travels, without what idling takes."""
MEMORY = 64.0
"""MiB that a session may add to the resident memory of Antiphon, each of its three ways."""

ARGUMENTS = {"max_model_len": "160000", "max_num_seqs": "8", "max_num_batched_tokens": "8192"}
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 160_000,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
"""The configuration of the model."""

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}{% endif %}
# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Call one with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' or not tools %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

Json = dict[str, Any]


class Turn(Struct, frozen=True):
    """One turn: CPU and time to the first token, both in ms, the tokens of its prompt, and its seconds."""

    cpu: float
    first: float
    prompt: int
    seconds: float


class Session(Struct, frozen=True):
    """One way to lead the session.

    `memory` is what it added to the server's resident memory, in MiB, `idle` the CPU that the server takes
    for nothing, in ms per second.
    """

    name: str
    turns: list[Turn]
    memory: float
    idle: float

    @property
    def cpu(self) -> float:
        """Of all turns, in ms."""
        return sum(turn.cpu for turn in self.turns)

    def growth(self) -> float:
        """The last turn as a multiple of the fifth, without what an idle server takes."""
        return self._grown(lambda turn: turn.cpu - self.idle * turn.seconds)

    def whole_growth(self) -> float:
        """The same of all CPU."""
        return self._grown(lambda turn: turn.cpu)

    def _grown(self, cost: Callable[[Turn], float]) -> float:
        """The last turn as a multiple of the fifth, on the line through all turns: one alone differs by half.

        The line has the median of the slopes between any two turns: turns that are disturbed do not bend it.
        """
        costs = [*enumerate(map(cost, self.turns), 1)]
        slope = median((y - x) / (last - first) for (first, x), (last, y) in combinations(costs, 2))
        start = median(each - slope * number for number, each in costs)
        return (start + slope * len(costs)) / (start + slope * FIFTH)


class Report(Struct, frozen=True):
    """Everything that was measured."""

    machine: Machine
    targets: list[Target]
    sessions: list[Session]


class Client(Protocol):
    """One way to lead the session."""

    def ask(self, new: Sequence[Json]) -> tuple[float, int]:
        """Send what is new, and read the answer: the seconds to its first token, the tokens of the prompt."""


class ChatClient:
    """Chat Completions: the whole history travels."""

    def __init__(self, port: int) -> None:
        self._post = _Poster(port, "/v1/chat/completions")
        self._body: Json = {
            "model": MODEL,
            "messages": [],
            "tools": [{"type": "function", "function": tool} for tool in _tools()],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": ANSWER,
            "min_tokens": ANSWER,
        }

    def ask(self, new: Sequence[Json]) -> tuple[float, int]:
        self._body["messages"].extend(new)
        first, event = self._post(self._body, _is_chat_text)
        return first, event["usage"]["prompt_tokens"]


class ResponsesClient:
    """Responses by `previous_response_id`: what is new travels."""

    def __init__(self, send: Callable[[Json, "Test"], tuple[float, Json]]) -> None:
        self._send = send
        self._previous: Json = {}

    def ask(self, new: Sequence[Json]) -> tuple[float, int]:
        body: Json = {
            "model": MODEL,
            "input": [*map(_item, new)],
            "tools": [{"type": "function", **tool} for tool in _tools()],
            "stream": True,
            "temperature": 0,
            "max_output_tokens": ANSWER,
            "min_tokens": ANSWER,
            **self._previous,
        }
        first, event = self._send(body, _is_responses_text)
        response = event["response"]
        id_ = response["id"]
        options = {"comparison_response_id": id_}
        self._previous = {"previous_response_id": id_, "prompt_cache_options": options}
        return first, response["usage"]["input_tokens"]


Test = Callable[[Json], bool]
"""Whether an event has text of the model's."""


def _is_chat_text(event: Json) -> bool:
    return any(_has_text(choice["delta"]) for choice in event["choices"])


def _has_text(delta: Json) -> bool:
    return any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))


def _is_responses_text(event: Json) -> bool:
    return str(event["type"]).endswith(".delta")


class _Poster:
    """Posts requests, and reads the events of the answers.

    Each has a connection of its own: vLLM's server closes those on which nothing comes for five seconds.
    """

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path

    def __call__(self, body: Json, is_text: Test) -> tuple[float, Json]:
        """The seconds to the first text, and the last event. Raises RuntimeError."""
        sent = msgspec.json.encode(body)
        begun = perf_counter()
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)) as connection:
            connection.request("POST", self._path, sent, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {response.read()[:500]!r}")
            lines = (line[6:] for line in response if line.startswith(b"data: {"))
            return _read(map(msgspec.json.decode, lines), begun, is_text)


class _Socket:
    """Sends the requests on one WebSocket."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def __call__(self, body: Json, is_text: Test) -> tuple[float, Json]:
        begun = perf_counter()
        body.pop("stream")
        self._connection.send(msgspec.json.encode({"type": "response.create", **body}), text=True)
        return _read(self._events(), begun, is_text)

    def _events(self) -> Iterator[Json]:
        while True:
            event: Json = msgspec.json.decode(self._connection.recv(SECONDS))
            yield event
            if event["type"] in {"response.completed", "response.incomplete"}:
                return
            if event["type"] in {"error", "response.failed"}:
                raise RuntimeError(str(event)[:500])


def _read(events: Iterator[Json], begun: float, is_text: Test) -> tuple[float, Json]:
    first, last = 0.0, {}
    for last in events:
        if not first and is_text(last):
            first = perf_counter() - begun
    return first, last


# The session


def _tools() -> Iterator[Json]:
    for number in range(TOOLS):
        properties = {
            name: {"type": "string", "description": f"The {name} that tool {number} works with."}
            for name in ("path", "pattern", "command", "content")
        }
        parameters = {"type": "object", "properties": properties, "required": ["path"]}
        yield {
            "name": f"tool_{number}",
            "description": f"Tool {number}: reads, writes or searches a file, and tells what it has found.",
            "parameters": parameters,
        }


def _history(tokenizer: Tokenizer, turns: int, tokens: int, seed: int) -> Iterator[list[Json]]:
    """The messages that each turn adds. Those of another seed have other texts."""
    yield [
        {"role": "system", "content": "You write programs. " * 200},
        {"role": "user", "content": "Find out why the tests of the parser fail, and mend it."},
    ]
    step = (tokens - 4_500) // (turns - 1)
    dice = random.Random(seed)  # noqa: S311 - the same session in every run
    for turn in range(1, turns):
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": f"tool_{turn % TOOLS}", "arguments": f'{{"path": "src/part_{turn}.py"}}'},
        }
        yield [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": _output(tokenizer, dice, step - 70)},
        ]


def _output(tokenizer: Tokenizer, dice: random.Random, tokens: int) -> str:
    """Lines as of a program, of so many tokens."""
    lines: list[str] = []
    count = 0
    while count < tokens:
        name, value = dice.choice(("read", "parse", "token", "line", "state")), dice.randrange(1000)
        line = f"    {name}_{value} = {name}(state, {dice.randrange(1000)})  # as in part {value}\n"
        lines.append(line)
        count += len(tokenizer.encode(line, add_special_tokens=False).ids)
    return "".join(lines)


def _item(message: Json) -> Json:
    """The message as an item of Responses. A call of ours is what the model has not made: a message."""
    match message["role"]:
        case "tool":
            return {"role": "user", "content": message["content"]}
        case "assistant":
            call = message["tool_calls"][0]["function"]
            return {"role": "user", "content": f"{call['name']} was called with {call['arguments']}."}
    return message


# Measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--save", action="store_true", help="keep the figures for the chart")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the prompt of the last turn")
    parser.add_argument("--tokenizer", type=Path, default=BORROWED, help="a folder with tokenizer.json")
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    histories = [[*_history(tokenizer, options.turns, options.tokens, seed)] for seed in range(WAYS)]
    with TemporaryDirectory(prefix="antiphon-bench-") as name:
        folder = Path(name)
        model = write_model(folder, options.tokenizer, SMALL)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        sessions = _measured(model, folder / "store.db", histories)
    report = Report(Machine.here(), [*_targets(sessions)], sessions)
    if options.save:
        _chart(sessions, options).save("agent")
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(_table(report)))
    return 0


def _chart(sessions: Sequence[Session], options: argparse.Namespace) -> Chart:
    cost = {session.name: session.cpu for session in sessions}
    shown = {
        "Antiphon": "chat",
        "Antiphon, WebSocket": "websocket",
        "vLLM's own server": "vllm serve: chat",
    }
    title = f"CPU for a session of a coding agent: {options.turns} turns, {options.tokens:,} tokens"
    bars = tuple(Bar(name, cost[session]) for name, session in shown.items())
    return Chart(title, "ms", datetime.now(UTC).date().isoformat(), bars)


def _measured(model: Path, store: Path, histories: Sequence[Sequence[Sequence[Json]]]) -> list[Session]:
    calls = "--enable-auto-tool-choice", "--tool-call-parser", "hermes"
    ports = free_port(), free_port()
    with ExitStack() as stack:
        vllm = stack.enter_context(running(vllm_command(model, ARGUMENTS, *calls), ports[0]))
        options = "--dialect", "hermes", "--store", f"sqlite:///{store}"
        antiphon = stack.enter_context(running(antiphon_command(model, ARGUMENTS, *options), ports[1]))
        ways: Mapping[str, tuple[int, Client]] = {
            "vllm serve: chat": (vllm, ChatClient(ports[0])),
            "chat": (antiphon, ChatClient(ports[1])),
            "responses": (antiphon, ResponsesClient(_Poster(ports[1], "/v1/responses"))),
            "websocket": (antiphon, ResponsesClient(_Socket(stack.enter_context(_connected(ports[1]))))),
        }
        for pid, client in _warm(stack, ports, vllm, antiphon):
            _turn(pid, client, histories[0][0])
        idle = _idle({vllm, antiphon})
        turns: dict[str, list[Turn]] = {name: [] for name in ways}
        added = dict.fromkeys(ways, 0.0)
        for added_by_turn in zip(*histories, strict=True):
            for (name, (pid, client)), new in zip(ways.items(), added_by_turn, strict=True):
                before = _resident(pid)
                turns[name].append(_turn(pid, client, new))
                added[name] += _resident(pid) - before
    return [Session(name, turns[name], round(added[name], 1), idle[pid]) for name, (pid, _) in ways.items()]


def _connected(port: int) -> AbstractContextManager[ClientConnection]:
    """A WebSocket."""
    return connect(f"ws://127.0.0.1:{port}/v1/responses", open_timeout=60, max_size=None, compression=None)


def _warm(stack: ExitStack, ports: tuple[int, int], vllm: int, antiphon: int) -> Iterator[tuple[int, Client]]:
    """Clients of sessions that do not count, with which the servers run every line of their code once."""
    yield vllm, ChatClient(ports[0])
    yield antiphon, ChatClient(ports[1])
    yield antiphon, ResponsesClient(_Poster(ports[1], "/v1/responses"))
    yield antiphon, ResponsesClient(_Socket(stack.enter_context(_connected(ports[1]))))


def _turn(pid: int, client: Client, new: Sequence[Json]) -> Turn:
    before, begun = cpu_seconds(pid), perf_counter()
    first, prompt = client.ask(new)
    sleep(REST)
    cpu, seconds = cpu_seconds(pid) - before, perf_counter() - begun
    return Turn(round(cpu * 1e3, 2), round(first * 1e3, 1), prompt, round(seconds, 3))


def _idle(pids: Collection[int]) -> dict[int, float]:
    """The CPU that each process takes while nothing is asked, in ms per second."""
    before = {pid: cpu_seconds(pid) for pid in pids}
    sleep(IDLE_SECONDS)
    return {pid: round((cpu_seconds(pid) - before[pid]) * 1e3 / IDLE_SECONDS, 2) for pid in pids}


def _resident(pid: int) -> float:
    """MiB of memory that a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _targets(sessions: Sequence[Session]) -> Iterator[Target]:
    vllm, chat, *stored = sessions
    yield Target("share of vLLM's server's CPU, the whole session", round(chat.cpu / vllm.cpu, 3), LESS)
    for session in stored:
        yield Target(f"{session.name}: last turn, of the fifth", round(session.growth(), 2), GROWTH)
    for session in (chat, *stored):
        yield Target(f"{session.name}: MiB of memory that a session added", session.memory, MEMORY)


def _table(report: Report) -> Iterator[str]:
    machine = report.machine
    yield f"antiphon {machine.antiphon}, Python {machine.python}, {machine.cores} cores, load {machine.load}"
    yield f"\n{'ms of CPU / to the first token':34}" + "".join(f"{each.name:>20}" for each in report.sessions)
    count = len(report.sessions[0].turns)
    for number in sorted({1, FIFTH, *range(10, count, 10), count}):
        told = [each.turns[number - 1] for each in report.sessions]
        cells = "".join(f"{turn.cpu:11.1f} /{turn.first:7.0f}" for turn in told)
        yield f"turn {number:3}, {told[0].prompt:7} tokens{'':11}{cells}"
    yield f"{'CPU of the session':34}" + "".join(f"{each.cpu:20.0f}" for each in report.sessions)
    yield f"{'MiB added':34}" + "".join(f"{each.memory:20.1f}" for each in report.sessions)
    yield f"{'idle, ms of CPU per second':34}" + "".join(f"{each.idle:20.1f}" for each in report.sessions)
    for name, grown in ("", Session.growth), (" with idle", Session.whole_growth):
        yield f"{'last turn, of the fifth' + name:34}" + "".join(
            f"{each:20.2f}" for each in map(grown, report.sessions)
        )
    yield from target_table(report.targets)


if __name__ == "__main__":
    sys.exit(main())
