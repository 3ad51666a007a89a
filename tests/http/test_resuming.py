"""Streams that go on in another process, at every place where one may be killed: here all are in this process.

A `Host` is a process. Its transport stops to write after a number of bytes, as one whose client does not read
any more, and after some more that wait it is dead: what it would write then never comes, and its file is what it
was at that moment. The next host gets the connection and the file, as from the supervisor. `tests/test_streams.py`
kills real processes.
"""

import asyncio
import json
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from uvicorn.server import ServerState

from antiphon.app.journal import StreamedCompletionJournal, StreamJournal
from antiphon.core.accounts import ANYONE
from antiphon.core.stream_record import StreamRecord
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Hosted
from antiphon.engines.script import pieces_of, token_id
from antiphon.http import resuming
from antiphon.http.resuming import Recording, Resumer
from antiphon.http.server import config_of
from antiphon.processes.streams import Descriptors, Kept, Passage, StreamFile
from antiphon.run.resumed import ResumedJournal
from antiphon.store.records import CompletionFilter, Paging, ResponseKind
from tests.acting import PYTHON, ActingTool
from tests.server import composed
from tests.store.samples import conversation

CASES = int(os.environ.get("STREAMS", "8"))
"""How often each request is answered: `make test-streams` takes more, and other seeds."""
SEED = int(os.environ.get("SEED", "1"))

TEXT = " ".join(f"wörd{number} 🙂" for number in range(40))
THOUGHTS = "<think>Some thoughts about it, and then some more.</think>"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "' + "x " * 30 + '"}}\n</tool_call>'
RUN = '<tool_call>\n{"name": "python", "arguments": {"code": "6*7"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"when": "<tool_response>", "output": THOUGHTS + TEXT},
    {"when": "compute", "output": THOUGHTS + "Let me see." + RUN},
    {"when": "call it", "output": THOUGHTS + "Two calls:\n" + CALL + "\n" + CALL},
    {"when": "think", "output": THOUGHTS + TEXT},
    {"when": "long", "output": "word ", "tokens": 1500},
    {"when": "letters", "output": TEXT, "split": "chars"},
    {"output": TEXT},
]
IDS = [token_id(piece) for piece in pieces_of(TEXT)][:3]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "f", "parameters": PARAMETERS}
MESSAGES_TOOL = {"name": "f", "input_schema": PARAMETERS}


RUN_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"tools": [{"type": "code_interpreter"}]}),
    "responses": (
        "/v1/responses",
        {"store": False, "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
    ),
    "messages": (
        "/v1/messages",
        {"max_tokens": 2000, "tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    ),
}
"""With tools that the server runs, between two generations."""


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", said("Hi")),
    "chat, letters": ("/v1/chat/completions", said("letters")),
    "chat, usage": ("/v1/chat/completions", {**said("think"), "stream_options": {"include_usage": True}}),
    "chat, calls": ("/v1/chat/completions", {**said("call it"), "tools": [CHAT_TOOL]}),
    "chat, 3 choices": ("/v1/chat/completions", {**said("think"), "n": 3}),
    "chat, calls in 2 choices": ("/v1/chat/completions", {**said("call it"), "tools": [CHAT_TOOL], "n": 2}),
    "chat, scores": ("/v1/chat/completions", {**said("Hi"), "logprobs": True, "top_logprobs": 20}),
    "chat, much": ("/v1/chat/completions", {**said("long"), "logprobs": True, "top_logprobs": 3}),
    "chat, stop": ("/v1/chat/completions", {**said("Hi"), "stop": ["wörd30"]}),
    "chat, limit": ("/v1/chat/completions", {**said("Hi"), "max_tokens": 50}),
    "chat, a limit of reasoning": (
        "/v1/chat/completions",
        {**said("think"), "chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 5},
    ),
    "completions": ("/v1/completions", {"prompt": "Hi", "max_tokens": 500}),
    "completions, 2 prompts": ("/v1/completions", {"prompt": ["Hi", "Ho"], "max_tokens": 500, "n": 2}),
    "completions, scores": (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 500, "logprobs": 2},
    ),
    "responses": ("/v1/responses", {"input": "Hi", "store": False}),
    "responses, much": ("/v1/responses", {"input": "long", "store": False}),
    "responses, reasoning": ("/v1/responses", {"input": "think", "store": False}),
    "responses, calls": ("/v1/responses", {"input": "call it", "store": False, "tools": [RESPONSES_TOOL]}),
    "messages": ("/v1/messages", {**said("Hi"), "max_tokens": 500}),
    "messages, thinking": (
        "/v1/messages",
        {**said("think"), "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    "messages, calls": ("/v1/messages", {**said("call it"), "max_tokens": 500, "tools": [MESSAGES_TOOL]}),
    "ollama, chat": ("/api/chat", said("think")),
    "ollama, calls": ("/api/chat", {**said("call it"), "tools": [CHAT_TOOL]}),
    "ollama, generate": ("/api/generate", {"prompt": "Hi"}),
    "tokens": (
        "/inference/v1/generate",
        {"token_ids": IDS, "sampling_params": {"max_tokens": 500}},
    ),
}


HIGH = 64 * 1024
"""More bytes that wait hold an answer back."""
UNREAD = 1 << 30
"""A process that dies while its client does not read."""


class Plan(Struct):
    """When a process dies: it writes so many bytes, and so many that come after them wait to be written."""

    written: int
    waiting: int = 0


class _Mortal:
    """A transport of a process that dies after a `plan`; `die` is called then."""

    def __init__(self, transport: Any, protocol: Any, plan: Plan, die: Callable[[], None]) -> None:
        self._transport = transport
        self._protocol = protocol
        self._left = plan.written
        self._waiting = plan.waiting
        self._die = die
        self._held = 0
        self._paused = False
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size + self._held

    def is_closing(self) -> bool:
        return self.dead or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self.dead:
            return
        now = data[: self._left]
        if now:
            self._transport.write(now)
        self._left -= len(now)
        self._held += len(data) - len(now)
        if self._waiting == UNREAD and self._held > HIGH and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
            asyncio.get_running_loop().call_later(0.02, self._end)
        if not self._left and self._held >= self._waiting:
            self._end()

    def _end(self) -> None:
        if not self.dead:
            self.dead = True
            self._die()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        """Close it: with bytes that still wait, it dies."""
        if self._held and not self.dead:
            self._end()
        elif not self.dead:
            self._transport.close()


class Host:
    """A process, with what the supervisor has of its stream. The next connection ends by `plan`."""

    store: Any

    def __init__(self, make: Callable[[], Any], passage: Passage, streams: dict[bytes, Descriptors]) -> None:
        self._make = make
        self._passage = passage
        self._streams = streams
        self._protocol: Any = None
        self._file = -1
        self.plan: Plan | None = None
        self.died = asyncio.Event()

    def connection(self) -> Any:
        """The protocol of a new connection."""
        protocol, plan = self._make(), self.plan
        self._protocol = protocol
        self.died = asyncio.Event()
        if plan is not None:
            made = self._protocol.connection_made
            self._protocol.connection_made = lambda transport: made(
                _Mortal(transport, protocol, plan, self._die)
            )
        return self._protocol

    def kill(self) -> None:
        """It dies now."""
        self._protocol.transport._transport._end()

    def _die(self) -> None:
        """Keep the file as it is now."""
        recording = self._protocol.transport
        if isinstance(recording, _Mortal):  # its stream has not begun, or cannot be resumed
            self._file = -1
        else:
            data = os.pread(recording._file.descriptor, 1 << 24, 0)
            self._file = os.memfd_create("file")
            os.pwrite(self._file, data, 0)
        self.died.set()

    async def end(self) -> tuple[bytes, Descriptors]:
        """The stream of a process that has died."""
        transport = self._protocol.transport
        while not self._streams:
            await asyncio.sleep(0)
        stream, (connection, file) = self._streams.popitem()
        os.close(file)
        transport._transport.abort() if isinstance(transport, _Mortal) else transport.abort()
        await asyncio.sleep(0.001)
        return stream, (connection, self._file)

    async def resume(self, stream: bytes, descriptors: Descriptors, plan: Plan | None) -> None:
        """Go on with a stream of another one."""
        self.plan, self._protocol = plan, None
        self.died.clear()
        self._streams[stream] = descriptors
        assert self._passage.begin(stream, descriptors)
        while self._protocol is None and self._streams:  # there may be nothing more to do
            await asyncio.sleep(0)


@asynccontextmanager
async def host(**given: Any) -> AsyncIterator[Host]:
    _, runtime = composed(SCRIPT, **{"store": "none", **given})
    config = config_of(runtime.app)
    config.app = recording = Recording(config.app)  # type: ignore[arg-type]
    config.load()
    protocol: Any = config.http_protocol_class
    make = partial(protocol, config=config, server_state=ServerState(), app_state={})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    streams: dict[bytes, Descriptors] = {}

    def ended(stream: bytes) -> None:
        if not process.died.is_set():  # what it does after its death has not happened
            for descriptor in streams.pop(stream, ()):
                os.close(descriptor)

    process = Host(make, Passage(ours, streams.__setitem__, ended), streams)
    recording.passage = Resumer(process.connection, theirs).passage
    await runtime.start()
    process.store = runtime.app.storage.store
    try:
        yield process
    finally:
        await runtime.app.models.stop()
        await runtime.stop()
        recording.passage.close()
        await asyncio.sleep(0)
        process._passage.close()


@asynccontextmanager
async def hosts(count: int, tools: Sequence[Any] = (), **given: Any) -> AsyncIterator[list[Host]]:
    """So many, with these options; each has one of the tools, if there are any."""
    async with AsyncExitStack() as stack:
        own = [{"tools": [tool]} for tool in tools] or [{}] * count
        yield [await stack.enter_async_context(host(**given, **more)) for more in own]


@pytest.fixture(autouse=True)
def _one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All streams get the same ids, and the same time."""
    monkeypatch.setattr(resuming, "secrets", SimpleNamespace(token_bytes=lambda count: b"7" * count))
    monkeypatch.setattr(resuming, "time", SimpleNamespace(time=lambda: 1_800_000_000.0))


async def streamed(processes: list[Host], path: str, body: Any, plans: list[Plan]) -> tuple[bytes, int]:
    """The body of the response to a request, with a process for each plan and one more; how many have died."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    connection.setblocking(False)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    data = json.dumps({"model": "scripted", "stream": True, **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: one\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + data)
    current, *others = processes
    current.plan = plans[0] if plans else None
    await loop.connect_accepted_socket(current.connection, connection)
    deaths = 0
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        reading = group.create_task(read(client))
        for process, plan in zip(others, [*plans[1:], None], strict=False):
            dying = group.create_task(current.died.wait())
            await asyncio.wait((dying, reading), return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if not current.died.is_set():
                break
            deaths += 1
            await process.resume(*await current.end(), plan)
            current = process
    return unchunked(reading.result()), deaths


async def read(client: socket.socket) -> bytes:
    loop, whole = asyncio.get_running_loop(), b""
    with client:
        while data := await loop.sock_recv(client, 65536):
            whole += data
    return whole


def unchunked(response: bytes) -> bytes:
    """The body, without what differs between two answers. Its framing has to be whole."""
    head, rest = response.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), response
    body, size = b"", -1
    while size:
        line, rest = rest.split(b"\r\n", 1)
        size = int(line, 16)
        body += rest[:size]
        assert rest[size : size + 2] == b"\r\n"
        rest = rest[size + 2 :]
    assert not rest
    return timeless(body)


def timeless(body: bytes) -> bytes:
    """Without times."""
    return re.sub(rb'("(?:completed_at|(?:\w+_)?duration|created_at)":)("[^"]*"|[\d.]+)', rb"\g<1>0", body)


def by_choice(body: bytes) -> list[list[bytes]]:
    """The events of each choice: how those of several alternate is nobody's promise."""
    events = body.split(b"\n\n")
    indices = [re.search(rb'"index":(\d+)', event) for event in events]
    names = [
        index[1] if index and b'"choices":' in event else b""
        for index, event in zip(indices, events, strict=True)
    ]
    return [
        [event for name, event in zip(names, events, strict=True) if name == of] for of in sorted({*names})
    ]


def plans_for(rng: random.Random, size: int) -> list[Plan]:
    """When two processes die of a response of about so many bytes."""
    waiting = (0, 0, rng.randrange(8000))
    return [
        Plan(rng.randrange(size), rng.choice(waiting)),
        Plan(rng.randrange(size) // rng.choice((1, 4)), rng.choice(waiting)),
    ]


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_stream_is_equal_wherever_its_processes_die(name: str) -> None:
    path, body = REQUESTS[name]
    rng = random.Random(f"{SEED} {name}")
    async with hosts(3) as processes:
        whole, _ = await streamed(processes[:1], path, body, [])
        total = 0
        for _ in range(CASES):
            plans = plans_for(rng, len(whole))
            answer, deaths = await streamed(processes, path, body, plans)
            total += deaths
            assert by_choice(answer) == by_choice(whole), plans
        assert total > CASES


@pytest.mark.parametrize("harmless", [True, False])
@pytest.mark.parametrize("name", RUN_TOOLS)
async def test_tools_of_the_server_are_run_between(name: str, harmless: bool) -> None:
    """One that may have an effect is not run twice: if it may have run, the model is told so."""
    (path, more), rng = RUN_TOOLS[name], random.Random(f"{SEED} {name}")
    body = {**more, **({"input": "compute"} if name == "responses" else said("compute"))}
    hosted = Hosted("code_interpreter", "python", idempotent=harmless)
    tools = [SlowTool(functions=(replace(PYTHON, hosted=hosted),)) for _ in range(3)]
    async with hosts(3, tools) as processes:
        whole, _ = await streamed(processes[:1], path, body, [])
        total = 0
        for _ in range(CASES):
            for tool, process in zip(tools, processes, strict=True):
                tool.ran, tool.host = 0, process
                process.died.clear()
            plans = plans_for(rng, len(whole))
            answer, deaths = await streamed(processes, path, body, plans)
            total += deaths
            ran = sum(tool.ran for tool in tools)
            if harmless:
                assert answer == whole, plans
                assert 1 <= ran <= 3
            else:
                assert ran <= 1, plans
                assert answer == whole, plans  # no process has died while it ran
        assert total > CASES
        tools[0].deadly, tools[0].ran, tools[1].ran = True, 0, 0
        processes[0].died.clear()
        answer, _ = await streamed(processes, path, body, [Plan(UNREAD)])
        assert (tools[0].ran, tools[1].ran) == (1, harmless)
        assert (answer == whole) is harmless


STORED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**said("think"), "store": True}),
    "a response": ("/v1/responses", {"input": "think"}),
    "a response with calls": ("/v1/responses", {"input": "call it", "tools": [RESPONSES_TOOL]}),
}


@pytest.mark.parametrize("when", ["anywhere", "before it is stored", "when it is stored"])
@pytest.mark.parametrize("name", STORED)
async def test_an_answer_is_stored_once(
    name: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its process dies after the answer was stored, and before its client has got the end."""
    (path, body), rng = STORED[name], random.Random(f"{SEED} {name}")
    async with storing(1, tmp_path / "whole.db") as processes:
        whole, _ = await streamed(processes, path, body, [])
        expected = await everything(processes[0].store)
    for case in range(CASES // 2 if when == "anywhere" else 1):
        async with storing(3, tmp_path / f"{case}.db") as processes:
            plans = plans_for(rng, len(whole))
            with monkeypatch.context() as patch:
                if when != "anywhere":
                    plans = [Plan(UNREAD)]
                    kill_at_the_end(patch, processes[0], stored=when == "when it is stored")
                answer, deaths = await streamed(processes, path, body, plans)
            assert deaths or when == "anywhere"
            assert merged_events(answer) == merged_events(whole), plans
            assert await everything(processes[0].store) == expected, plans


@asynccontextmanager
async def storing(count: int, file: Path) -> AsyncIterator[list[Host]]:
    """So many, with one store, in which there is a conversation."""
    async with hosts(count, store=f"sqlite:///{file}") as processes:
        await processes[0].store.conversations.create(conversation(owner=ANYONE.owner), ())
        yield processes


async def everything(store: Any) -> Any:
    """What the store has of answers, without what differs between two of them."""
    owner, paging = ANYONE.owner, Paging("asc", None)
    responses = (await store.responses.page(owner, ResponseKind.RESPONSE, paging)).data
    completions = (await store.completions.list(owner, CompletionFilter(), paging)).data
    return (
        [(one.id, one.status, timeless(one.body)) for one in responses],
        [(one.id, timeless(one.body)) for one in completions],
    )


@pytest.mark.parametrize(("more", "kept"), [({}, 1), ({"conversation": "conv_1"}, 0)])
async def test_a_turn_of_a_conversation_is_not_kept(
    more: dict[str, Any], kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it was resumed after it was stored, the conversation would have it twice."""
    begin, begun = Passage.begin, list[bytes]()

    def beginning(self: Passage, stream: bytes, descriptors: Descriptors) -> bool:
        begun.append(stream)
        return begin(self, stream, descriptors)

    monkeypatch.setattr(Passage, "begin", beginning)
    async with storing(1, tmp_path / "store.db") as processes:
        await streamed(processes, "/v1/responses", {"input": "think", **more}, [])
    assert len(begun) == kept


def merged_events(body: bytes) -> Any:
    """The events with deltas that are merged: how many come while a response is being stored differs."""
    return merged_response(body) if b"sequence_number" in body else body


def kill_at_the_end(patch: pytest.MonkeyPatch, process: Host, *, stored: bool) -> None:
    """The process dies before or after it has stored the end of its answer."""
    for kind in (StreamJournal, StreamedCompletionJournal):
        close = kind.close

        async def closing(journal: Any, *end: Any, close: Any = close) -> Any:
            if process.died.is_set():
                return await close(journal, *end)
            if not stored:
                process.kill()
                return end[-1]
            lines = await close(journal, *end)
            process.kill()
            return lines

        patch.setattr(kind, "close", closing)


class SlowTool(ActingTool):
    """A tool that takes a moment. It is counted how often it has `ran` before its process died."""

    ran = 0
    host: Host | None = None
    deadly = False

    async def next(self) -> ToolResult:
        if self.host is None or not self.host.died.is_set():
            self.ran += 1
        if self.host is not None and self.deadly:
            self.host.kill()
        await asyncio.sleep(0.003)
        return await super().next()


async def test_a_stream_is_equal_wherever_its_client_stops_reading() -> None:
    """Much waits then, and deltas are merged: so what they say is compared."""
    rng = random.Random(SEED)
    async with hosts(3) as processes:
        for name, merged in (("chat, much", merged_chat), ("responses, much", merged_response)):
            path, body = REQUESTS[name]
            whole, _ = await streamed(processes[:1], path, body, [])
            for _ in range(max(4, CASES // 3)):
                plans = [Plan(rng.randrange(len(whole) // 2), UNREAD) for _ in range(2)]
                answer, deaths = await streamed(processes, path, body, plans)
                assert deaths
                assert merged(answer) == merged(whole), plans


def merged_chat(body: bytes) -> Any:
    """The text of a chat, and its log probabilities, and what is not a delta of these."""
    text, scores, others = "", list[Any](), list[bytes]()
    for event in body.split(b"\n\n"):
        choices = event.startswith(b"data: {") and json.loads(event[6:])["choices"]
        if choices and choices[0]["delta"].get("content"):
            text += choices[0]["delta"]["content"]
            scores += choices[0]["logprobs"]["content"]
        else:
            others.append(event)
    return text, scores, others


def merged_response(body: bytes) -> Any:
    """The text of a response, and the events that are not its deltas. The numbers have no gaps."""
    events = [json.loads(event.split(b"data: ")[1]) for event in body.split(b"\n\n") if b"data: {" in event]
    assert [event.pop("sequence_number") for event in events] == [*range(len(events))]
    return (
        "".join(event["delta"] for event in events if "delta" in event),
        [event for event in events if "delta" not in event],
    )


# The same with faults, so that it is known that it would find them


def _lose_the_buffer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "after", lambda self, count: b"")


def _count_wrongly(patch: pytest.MonkeyPatch, by: int) -> None:
    after = Kept.after
    patch.setattr(Kept, "after", lambda self, count: after(self, count + by))


def _change_chunks(patch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> None:
    entries_of = StreamRecord.entries_of

    def changed(self: StreamRecord, choice: int) -> list[Any]:
        return change(entries_of(self, choice))

    patch.setattr(StreamRecord, "entries_of", changed)


def _draw_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        resuming,
        "StreamRecord",
        lambda seed, created, *recorded: StreamRecord(
            seed if not recorded else b"another", created, *recorded
        ),
    )


def _forget_the_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        resuming,
        "StreamRecord",
        lambda seed, created, *recorded: StreamRecord(seed, created + len(recorded), *recorded),
    )


def _send_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResumedJournal, "record", lambda self, choice, events, lines: lines)


def _keep_entries_apart(patch: pytest.MonkeyPatch) -> None:
    append = StreamFile.append

    def late(self: Any, data: bytes, count: int, entries: bytes, *more: Any) -> bool:
        kept, self.late = getattr(self, "late", (0, b"")), (count, entries)
        return append(self, data, *kept, *more)

    patch.setattr(StreamFile, "append", late)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a byte is written twice": lambda patch: _count_wrongly(patch, -1),
    "a byte is left out": lambda patch: _count_wrongly(patch, 1),
    "what the event loop had is lost": _lose_the_buffer,
    "a chunk is counted twice": lambda patch: _change_chunks(patch, lambda chunks: chunks + chunks[-1:]),
    "a chunk is lost": lambda patch: _change_chunks(patch, lambda chunks: chunks[:-1]),
    "ids are drawn anew": _draw_anew,
    "the time is another one": _forget_the_time,
    "what was sent is sent again": _send_again,
    "chunks are recorded after their bytes": _keep_entries_apart,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_would_be_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, body = REQUESTS["chat, calls"]
    rng = random.Random(5)
    async with hosts(3) as processes:
        whole, _ = await streamed(processes[:1], path, body, [])
        FAULTS[fault](monkeypatch)
        for _ in range(20):
            try:
                answer, _ = await streamed(processes, path, body, plans_for(rng, len(whole)))
            except (AssertionError, ValueError):  # not even its framing is whole
                return
            if answer != whole:
                return
    pytest.fail(f"nothing is different although {fault}")
