"""What tests of stored answers share: a store that goes away, a simple projection, servers over one store."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from antiphon.apis.responses.errors import encode_stream_error
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stored import StoredItem
from antiphon.app.app import App
from antiphon.app.event_log import logged_events
from antiphon.app.log_source import LogProjection, LogSource
from antiphon.app.log_writer import LogWriter
from antiphon.app.responses.create import Creation
from antiphon.app.responses.history import read_request
from antiphon.core.errors import AntiphonError, StoreError, StoreFullError
from antiphon.core.events import Event, Finished, TextDelta, TextEnded
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.drive import Client, Driver
from antiphon.store.records import LogEntry, ResponseRecord, ResponseStatus
from antiphon.store.store import Store
from tests.run.support import LONGEST_WAIT
from tests.server import composed
from tests.store.samples import OWNER

Lines = Iterable[Mapping[str, Any]]


READING = ("get", "page", "summaries", "input_items", "items", "history", "events_after", "read", "messages")
MAKING = ("responses.create", "responses.save", "completions.save")


class Killed(Exception):
    """What a store says to a server that is dead."""


class Outage:
    """A store as one server sees it: it can be `away`, or `full`, and its calls can be `held`.

    The first of the calls in `unsure` is made, and its success is not reported. `calls` are the calls,
    `made` the ids of created objects.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away: bool | Exception = False
        self.full = False
        self.held: dict[str, asyncio.Event] = {}
        self.unsure: set[str] = set()
        self.calls: list[str] = []
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._store, name)
        return _Part(self, name, part) if name in ("responses", "log", "jobs", "completions") else part

    async def close(self) -> None:
        """Nothing: several servers may share the store, and the owner closes it."""


class _Part:
    def __init__(self, outage: Outage, name: str, part: Any) -> None:
        self._outage = outage
        self._name = name
        self._part = part

    def __getattr__(self, name: str) -> Any:
        method, outage, full = getattr(self._part, name), self._outage, f"{self._name}.{name}"

        async def call(*args: Any) -> Any:
            outage.calls.append(full)
            if full in MAKING and args[0].id not in outage.made:  # it may be tried again
                outage.made.append(args[0].id)
            if full in outage.held:
                await outage.held[full].wait()
            if outage.away:
                raise outage.away if isinstance(outage.away, Exception) else StoreError
            if outage.full and name not in READING:
                raise StoreFullError
            made = await method(*args)
            if full in outage.unsure:
                outage.unsure = set()
                raise StoreError
            return made

        return call


class Diary:
    """The projection of a response that is as simple as may be: a line for each delta of text."""

    def __init__(self) -> None:
        self.status: str = ResponseStatus.IN_PROGRESS
        self.frame = None
        self.text = ""
        self._number = 0

    @property
    def items(self) -> list[StoredItem]:
        return [StoredItem("item", "message", self.text.encode())] if self.text else []

    def _line(self, **fields: Any) -> bytes:
        line = json.dumps({"sequence_number": self._number, **fields}).encode()
        self._number += 1
        return line

    def recording_encoder(self, texts: list[str]) -> None: ...

    def set_prompts(self, prompts: Any) -> None: ...

    def begin(self) -> list[bytes]:
        return [self._line(begins=True)]

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        lines = []
        for event in events:
            match event:
                case TextDelta(text):
                    self.text += text
                    lines.append(self._line(text=text))
                case TextEnded():
                    lines.append(self._line(item=self.text))
                case Finished(reason):
                    lines.append(self._line(ends=reason))
        return lines

    def _end(self, status: ResponseStatus, **fields: Any) -> list[bytes]:
        self.status = status
        return [self._line(status=status, **fields)]

    def finish(self) -> list[bytes]:
        return self._end(ResponseStatus.COMPLETED)

    def fail(self, error: AntiphonError) -> list[bytes]:
        return self._end(ResponseStatus.FAILED, error=error.message)

    def cancel(self) -> list[bytes]:
        return self._end(ResponseStatus.CANCELLED)

    def body(self) -> bytes:
        return json.dumps({"status": self.status, "text": self.text}).encode()


# Servers


class Server:
    """A server with an engine and a worker of its own, and the store as it sees it."""

    def __init__(self, store: Store, engine: ScriptedEngine, **given: Any) -> None:
        self.store = Outage(store)
        self.engine = engine
        given = {"model_name": ("scripted",), "jobs": 4, "lease_seconds": 60, "tools": (), **given}
        _, runtime = composed(engine, open_store=self._open, **given)
        self.app, self.worker = runtime.app, runtime.worker

    async def _open(self) -> Any:
        return self.store

    @property
    def writer(self) -> LogWriter:
        return self.app.storage.writer

    async def die(self) -> None:
        """As if killed: nothing more of it reaches the store."""
        self.store.away = Killed()
        with suppress(Killed):
            await self.worker.stop()
        await self.worker.stop()


@asynccontextmanager
async def serving(
    store: Store, script: Lines | ScriptedEngine, *, works: bool = True, **options: Any
) -> AsyncIterator[Server]:
    """A server while the block runs. One that does not `work` takes no background responses."""
    engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
    server = Server(store, engine, **options)
    await server.app.models.start()
    await server.app.storage.start()
    if works:
        await server.worker.start()
    try:
        yield server
    finally:
        if not isinstance(server.store.away, Killed):
            server.store.away = False
            await server.worker.stop()
        await server.app.models.stop()
        await server.app.storage.stop()


async def creation(app: App, given: Any, name: str = "resp_1", **fields: Any) -> Creation:
    """A response that is being created for this input."""
    body = {"model": "scripted", "input": given, **fields}
    wire = msgspec.convert(body, CreateResponse)
    return Creation(app, wire, await read_request(app, wire, OWNER, name))


async def queue(app: App, given: Any = "Hi", name: str = "resp_1", **fields: Any) -> str:
    """Queue a background response."""
    await (await creation(app, given, name, background=True, **fields)).queue()
    return name


# What the store has


async def found(store: Store, name: str = "resp_1") -> ResponseRecord:
    record = await store.responses.get(OWNER, name)
    assert record is not None
    return record


async def ended(store: Store, name: str = "resp_1") -> ResponseRecord:
    async with asyncio.timeout(LONGEST_WAIT):
        while not (record := await found(store, name)).status.terminal:
            await asyncio.sleep(0.005)
    return record


async def until_written(store: Store, lines: int, name: str = "resp_1") -> None:
    async with asyncio.timeout(LONGEST_WAIT):
        while (await found(store, name)).last_seq + 1 < lines:
            await asyncio.sleep(0.001)


def split(entries: Iterable[LogEntry]) -> list[bytes]:
    return [event for entry in entries for event in logged_events(entry)]


async def log_of(store: Store, name: str = "resp_1") -> list[bytes]:
    """The lines of a log, which are numbered without gaps."""
    entries = await store.log.read(name)
    assert [entry.first for entry in entries] == [0, *(entry.last + 1 for entry in entries[:-1])][
        : len(entries)
    ]
    lines = split(entries)
    assert [json.loads(line)["sequence_number"] for line in lines] == list(range(len(lines)))
    return lines


def timeless(lines: Iterable[bytes]) -> list[bytes]:
    """The same lines whenever they were made."""
    return [re.sub(rb'("(?:created|completed)_at":)\d+', rb"\g<1>0", line) for line in lines]


def text_of(body: bytes) -> str:
    """All that a response says."""
    output = json.loads(body)["output"]
    messages = [item for item in output if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


# Readers


class Reader(Client):
    """A client that keeps what it reads."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, lines: list[bytes]) -> None:
        self.lines += lines

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self.lines += lines


async def read(writer: LogWriter, name: str = "resp_1", after: int = -1, owner: str = OWNER) -> list[bytes]:
    """The lines of a log after number `after`, up to its end."""
    reader = Reader()
    await Driver(LogSource(writer, owner, name, after), LogProjection(encode_stream_error)).run(reader)
    return reader.lines
