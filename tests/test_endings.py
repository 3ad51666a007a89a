"""Every way in which an answer may end, as `docs/endings.md` has them, with every API and in every mode.

The table of that page says what is expected; here is how each ending comes about, and what
a client makes of what it gets. Servers are real, on real sockets, over the scripted engine; some of
them ask another server for chats, whose engine that is.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from msgspec import Struct
from msgspec.structs import replace
from websockets.asyncio.client import connect

from antiphon.app import log_source, log_writer
from antiphon.core.errors import EngineDiedError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.engines.upstream import Options as Asking
from antiphon.engines.upstream import UpstreamEngine
from antiphon.store.open import open_store
from tests.acting import ActingTool
from tests.apis.messages.support import check_stream as check_message_stream
from tests.app.support import Outage
from tests.http.api import check_body, check_stream
from tests.response_invariants import TERMINAL, read_events, read_sse
from tests.run.support import LONGEST_WAIT, until
from tests.search import CI, share
from tests.server import NO_TLS, Running, running

PAGE = Path(__file__).parent.parent / "docs" / "endings.md"

RUN = '<tool_call>\n{"name": "python", "arguments": {"code": "print(42)"}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "<tool_response>", "output": "It is 42.", "fail_after": 2},
    {"when": "use the tool", "output": RUN},
    {"when": "never starts", "output": "word", "fail_after": 0},
    {"when": "breaks off", "output": "word word word word", "fail_after": 3},
    {"when": "says nothing yet", "output": "word", "delay_ms": 60_000},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 2},
    {"when": "steady", "output": "word ", "tokens": 100, "delay_ms": 5},
    {"output": "word word word word"},
]
NOTHING, STOPPED, NO_SUCH = "nothing", "stopped", "-"
CHAT, COMPLETIONS, RESPONSES, SOCKET, COMPACT = "chat", "completions", "responses", "WebSocket", "compaction"
MESSAGES = "messages"
RUNNING = ("queued", "in_progress")


# The table


class Way(Struct, frozen=True):
    """How an answer is asked for."""

    api: str
    streamed: bool
    stored: bool
    background: bool = False

    def __str__(self) -> str:
        words = (
            self.api,
            "streamed" if self.streamed else "whole",
            "stored" if self.stored else "not stored",
            *(("background",) if self.background else ()),
        )
        return ", ".join(words)


WAYS = [
    *(Way(CHAT, streamed, stored) for streamed in (False, True) for stored in (False, True)),
    *(Way(COMPLETIONS, streamed, stored=False) for streamed in (False, True)),
    *(Way(MESSAGES, streamed, stored=False) for streamed in (False, True)),
    *(Way(RESPONSES, streamed, stored) for streamed in (False, True) for stored in (False, True)),
    *(Way(RESPONSES, streamed, stored=True, background=True) for streamed in (False, True)),
    *(Way(SOCKET, streamed=True, stored=stored) for stored in (False, True)),
    Way(COMPACT, streamed=False, stored=False),
]


class Row(Struct, frozen=True):
    """A line of the table: what a client gets and what is stored, in the page's words."""

    ending: str
    where: str
    whole: str
    streamed: str
    response: str
    completion: str
    engine: str

    def told(self, way: Way) -> str:
        """What a client gets that asked in this way."""
        return _of(self.streamed if way.streamed else self.whole, way)

    def stored(self, way: Way) -> str:
        """What is stored of an answer that was asked for in this way."""
        if not way.stored:
            return NOTHING
        return _of(self.completion if way.api == CHAT else self.response, way)


def _of(cell: str, way: Way) -> str:
    """What a cell says of a way: `A; chat: B` is B for chat, and A for all others."""
    general, *special = cell.split("; ")
    for each in special:
        kind, _, value = each.partition(": ")
        if kind == way.api or (kind == "streamed" and way.streamed):
            return value
    return general


def table() -> Iterator[Row]:
    """The lines of the page's table."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] in ENDINGS:
            yield Row(*cells)


# Clients


class Asker:
    """A client with one request. `told` is its end, in the page's words."""

    def __init__(self, server: Running, way: Way) -> None:
        self.server = server
        self.way = way
        self.id: str | None = None
        self.heard = 0  # words, where it gets them one by one
        self.http = httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", timeout=LONGEST_WAIT)

    def _request(self, text: str) -> tuple[str, dict[str, Any]]:
        """The path, and the body."""
        way, fields = self.way, {"model": "scripted", "store": self.way.stored}
        if way.streamed:
            fields["stream"] = True
        tools = [{"type": "code_interpreter"}] if "use the tool" in text else []
        match way.api:
            case "chat":
                return "/chat/completions", {
                    **fields,
                    "messages": [{"role": "user", "content": text}],
                    **({"tools": tools} if tools else {}),
                }
            case "completions":
                return "/completions", {**fields, "prompt": text, "max_tokens": 20_000}
            case "messages":
                fields |= {"max_tokens": 20_000, "messages": [{"role": "user", "content": text}]}
                code = [{"type": "code_execution_20250522", "name": "code_execution"}]
                return "/messages", {**fields, **({"tools": code} if tools else {})}
            case "compaction":
                return "/responses/compact", {
                    "model": "scripted",
                    "input": [{"role": "user", "content": text}],
                }
        if tools:
            fields["tools"] = [{**tools[0], "container": {"type": "auto"}}]
        if way.background:
            fields["background"] = True
        return "/responses", {**fields, "input": text}

    async def ask(self, text: str) -> str:
        """What comes of it."""
        path, body = self._request(text)
        if self.way.api == SOCKET:
            return await self._converse(body)
        if self.way.streamed:
            return await self._stream(path, body)
        response = await self.http.post(path, json=body)
        if response.status_code != 200 or not self.way.background:
            return _told(response)
        assert response.json()["status"] == "queued"
        self.id = response.json()["id"]
        return await self._poll()

    async def _poll(self) -> str:
        """How a background response ends."""
        while True:
            response = await self.http.get(f"/responses/{self.id}")
            if response.status_code == 503 or response.json().get("status") in RUNNING:
                await asyncio.sleep(0.01)
                continue
            return _told(response)

    async def _stream(self, path: str, body: dict[str, Any]) -> str:
        async with self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return _told(response)
            assert response.headers["content-type"].startswith("text/event-stream")
            read = b""
            async for piece in response.aiter_bytes():
                read += piece
                self._listen(read)
        if self.way.api == RESPONSES:
            return _told_by_events(read_sse(read))
        if self.way.api == MESSAGES:
            return _told_by_message_events(read_events(read))
        return _told_by_chunks([block.removeprefix(b"data: ") for block in read.split(b"\n\n") if block])

    def _listen(self, read: bytes) -> None:
        self.heard = read.count(b"word")
        if self.way.api in (RESPONSES, SOCKET) and (found := re.search(rb'"id":"(resp_[^"]+)"', read)):
            self.id = found[1].decode()

    async def _converse(self, body: dict[str, Any]) -> str:
        url = self.server.url.replace("http", "ws") + "/v1/responses"
        async with connect(url) as socket:
            await socket.send(json.dumps({"type": "response.create", **body}))
            payloads: list[bytes] = []
            while True:
                payload = await socket.recv(decode=False)
                assert isinstance(payload, bytes)
                event = json.loads(payload)
                if "status" in event:  # an HTTP error's
                    assert payloads == []
                    return _failure(event["status"], event["error"])
                payloads.append(payload)
                self._listen(b"".join(payloads))
                if event["type"] in TERMINAL.values():
                    return _told_by_events(payloads)


def _failure(status: int | str, error: Any) -> str:
    assert error["message"]
    code = error["code"] if "code" in error else error.get("details", {}).get("error_code")
    return f"{status} {code or error['type']}"


def _told(response: httpx.Response) -> str:
    """What a whole body says."""
    body = response.json()
    if response.status_code != 200:
        return _failure(response.status_code, body["error"])
    if body.get("type") == "message":
        assert body["stop_reason"] == "end_turn"
        return "the answer"
    if body["object"] == "response":
        check_body(body)
        return "the answer" if body["status"] == "completed" else body["status"]
    if body["object"] != "response.compaction":
        assert body["choices"][0]["finish_reason"] == "stop"
    return "the answer"


def _told_by_events(payloads: list[bytes]) -> str:
    """What the events of a response say."""
    *before, last = map(json.loads, payloads)
    if last["type"] == "error":  # of a reader that cannot go on: the response itself may
        return _failure("error", last["error"])
    response = check_stream(payloads)
    if response["status"] == "failed":
        return _failure("error", before[-1]["error"])
    return "the answer" if response["status"] == "completed" else response["status"]


def _told_by_message_events(payloads: list[bytes]) -> str:
    """What the events of a message say."""
    last = json.loads(payloads[-1])
    if last["type"] == "error":
        return _failure("error", last["error"])
    check_message_stream(payloads)
    return "the answer"


def _told_by_chunks(payloads: list[bytes]) -> str:
    """What the chunks of a completion say."""
    *chunks, done = payloads
    assert done == b"[DONE]"
    last = json.loads(chunks[-1])
    if "error" in last:
        return _failure("error", last["error"])
    assert last["choices"][0]["finish_reason"] == "stop"
    return "the answer"


# Servers


class World:
    """A server over a store that may go away, and others over the same store.

    Where `chats`, each has its model from another server, as a client of Chat Completions.
    """

    def __init__(self, *, chats: bool = False, limits: Limits = DEFAULTS, **options: Any) -> None:
        self._chats = chats
        self._limits = limits
        self._options = options

    async def open(self) -> None:
        self._store = await open_store("memory", self._limits)

    async def close(self) -> None:
        await self._store.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[Running, Outage]]:
        outage = Outage(self._store)

        async def opened() -> Any:
            return outage

        options = {"open_store": opened, "lease_seconds": 0.3, "tools": [ActingTool()], **self._options}
        async with AsyncExitStack() as stack:
            if self._chats:
                behind = await stack.enter_async_context(running(SCRIPT))
                asking = UpstreamEngine(Asking(behind.url, upstream_kind="chat"))
                server = await stack.enter_async_context(running(asking, dialect=None, **options))
                server.engine = behind.engine
            else:
                server = await stack.enter_async_context(running(SCRIPT, **options))
            try:
                yield server, outage
            finally:
                outage.away = outage.full = False


class Case:
    """One ending of one answer: who asks, and of whom."""

    def __init__(self, world: World, server: Running, store: Outage, way: Way, continued: str) -> None:
        self.world = world
        self.continued = continued  # the outcome of an answer that another server continues
        self.server = server
        self.store = store
        self.way = way
        self.asker = Asker(server, way)
        self.output: list[Any] = []  # that is stored

    async def answered(self, text: str) -> str:
        """What the client gets if nothing interferes."""
        return await self.asker.ask(text)

    async def interrupted(self, text: str, meanwhile: Callable[[], Awaitable[None]]) -> str:
        """What it gets if something happens before the first word, or once it has got some."""
        asking = asyncio.create_task(self.asker.ask(text))
        await until(lambda: asking.done() or self.ready(text))
        assert not asking.done(), asking.result()
        await meanwhile()
        return await asking

    def ready(self, text: str) -> bool:
        if "says nothing yet" in text:
            return bool(self.server.engine.load.running)
        return self.asker.heard > 3 if self.way.streamed else self.server.engine.steps > 20

    @property
    def id(self) -> str:
        """The response."""
        return self.asker.id or self.store.made[-1]

    async def stop(self) -> None:
        await self.server.stop()

    async def stored(self) -> str:
        """What is stored once all is over, in the page's words."""
        if not self.store.made:
            return NOTHING
        assert len(self.store.made) == 1
        path = "/chat/completions" if self.way.api == CHAT else "/responses"
        async with asyncio.timeout(LONGEST_WAIT):
            while True:
                response = await self.asker.http.get(f"{path}/{self.store.made[0]}")
                if response.status_code == 404:
                    return NOTHING
                if response.status_code == 200 and response.json().get("status") not in RUNNING:
                    break
                await asyncio.sleep(0.01)
        body = response.json()
        if self.way.api == CHAT:
            return _told(response)
        check_body(body)
        self.output = body["output"]
        status: str = body["status"]
        return status


Ending = Callable[[Case], Awaitable[str]]
ENDINGS: dict[str, Ending] = {}
"""How each ending comes about; what the client gets then."""


def ending(name: str) -> Callable[[Ending], Ending]:
    def named(ending: Ending) -> Ending:
        ENDINGS[name] = ending
        return ending

    return named


@ending("the model finishes the answer")
async def finishes(case: Case) -> str:
    return await case.answered("Hi")


@ending("the engine fails before the first event")
async def fails_at_once(case: Case) -> str:
    return await case.answered("never starts")


@ending("the engine fails in the middle")
async def fails(case: Case) -> str:
    return await case.answered("breaks off")


@ending("the engine fails after a tool was called")
async def fails_later(case: Case) -> str:
    return await case.answered("use the tool")


@ending("the engine dies in the middle")
async def dies(case: Case) -> str:
    async def die() -> None:
        for generation in [*case.server.engine.playing]:
            generation.fail(EngineDiedError())

    return await case.interrupted("steady", die)


@ending("the client disconnects before the first event")
async def leaves_early(case: Case) -> str:
    return await _leaves(case, "says nothing yet")


@ending("the client disconnects in the middle")
async def leaves(case: Case) -> str:
    return await _leaves(case, "steady" if case.way.background else "endless")


async def _leaves(case: Case, text: str) -> str:
    asking = asyncio.create_task(case.asker.ask(text))
    await until(lambda: asking.done() or case.ready(text))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    return NO_SUCH


@ending("the response is cancelled before the first event")
async def cancelled_early(case: Case) -> str:
    return await _cancelled(case, "says nothing yet")


@ending("the response is cancelled in the middle")
async def cancelled(case: Case) -> str:
    return await _cancelled(case, "endless")


async def _cancelled(case: Case, text: str) -> str:
    async def cancel() -> None:
        response = await case.asker.http.post(f"/responses/{case.id}/cancel")
        assert _told(response) == "cancelled"

    return await case.interrupted(text, cancel)


@ending("the server stops before the first event")
async def stops_early(case: Case) -> str:
    return await case.interrupted("says nothing yet", case.stop)


@ending("the server stops in the middle")
async def stops(case: Case) -> str:
    if not case.way.background:
        return await case.interrupted("endless", case.stop)

    async def hand_over() -> None:
        await case.stop()
        others.append(case.world.serving())
        await others[0].__aenter__()

    others: list[Any] = []
    told = await case.interrupted("steady", hand_over)
    assert await case.stored() == case.continued
    await others[0].__aexit__(None, None, None)
    return told


@ending("the store is unavailable from the beginning")
async def store_is_away(case: Case) -> str:
    case.store.away = True
    told = await case.answered("Hi")
    case.store.away = False
    return told


@ending("the store is unavailable for a moment")
async def store_comes_back(case: Case) -> str:
    async def take_away() -> None:
        case.store.away = True
        if not case.way.background:  # what is stored once is stored now
            await until(lambda: not case.server.engine.load.running)
        await asyncio.sleep(0.1)
        case.store.away = False

    return await case.interrupted("steady", take_away)


@ending("the store stays unavailable")
async def store_stays_away(case: Case) -> str:
    async def take_away() -> None:
        case.store.away = True
        if not case.way.streamed:  # who asks for the whole asks again, until it is back
            await until(lambda: not case.server.engine.load.running)
            case.store.away = not case.way.background

    told = await case.interrupted("steady", take_away)
    case.store.away = False
    return told


@ending("the disk of the store is full from the beginning")
async def disk_is_full(case: Case) -> str:
    case.store.full = True
    told = await case.answered("Hi")
    case.store.full = False
    return told


@ending("the disk of the store is full in the middle")
async def disk_becomes_full(case: Case) -> str:
    async def fill() -> None:
        case.store.full = True
        if case.way.background:  # somebody makes room
            await until(lambda: not case.server.engine.load.running)
            case.store.full = False

    told = await case.interrupted("steady", fill)
    case.store.full = False
    return told


@ending("a limit of the store is exceeded, from the beginning")
async def no_room(case: Case) -> str:
    return await case.answered("Hi")


@ending("a limit of the store is exceeded, in the middle")
async def too_much(case: Case) -> str:
    return await case.answered("steady")


ROOM = {
    "a limit of the store is exceeded, from the beginning": Limits(stored_bytes=1),
    "a limit of the store is exceeded, in the middle": Limits(response_bytes=4_000),
}


@ending("the response is deleted in the middle")
async def deleted(case: Case) -> str:
    async def delete() -> None:
        response = await case.asker.http.delete(f"/responses/{case.id}")
        assert response.json()["deleted"]

    return await case.interrupted("endless", delete)


@ending("the deadline passes before the first event")
async def late_at_once(case: Case) -> str:
    return await case.answered("says nothing yet")


@ending("the deadline passes in the middle")
async def late(case: Case) -> str:
    return await case.answered("endless")


DEADLINE = 0.3


def applies(row: Row, way: Way) -> bool:
    """Whether an answer that is asked for in this way can end so."""
    if (row.where == "background") != way.background:
        return False
    if "tool" in row.ending and way.api in (COMPLETIONS, COMPACT):
        return False
    if "store" in row.ending and not way.stored:
        return False
    return not ("deleted" in row.ending and (not way.stored or way.api == CHAT or row.told(way) == NO_SUCH))


CASES = [(row, way) for row in table() for way in WAYS if applies(row, way)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "RETRY", 0.01)
    monkeypatch.setattr(log_source, "POLL_INTERVAL", 0.1)


@pytest.mark.parametrize(
    ("row", "way"), [pytest.param(*case, id=f"{case[0].ending}: {case[1]}") for case in share(CASES, 3)]
)
async def test_an_answer_ends_as_the_page_says(row: Row, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    await _ends(row, way, monkeypatch, chats=False)


CHAT_WAYS = [
    Way(CHAT, streamed=False, stored=False),
    Way(RESPONSES, streamed=True, stored=True),
    Way(RESPONSES, streamed=True, stored=True, background=True),
][: 1 if CI else None]
"""CI tries one of them: each ending waits for two servers. `make test` tries all."""
CHAT_CASES = [(row, way) for row in table() for way in CHAT_WAYS if applies(row, way)]
GOES_ON = (
    "the engine dies in the middle",
    "the server stops in the middle",
    "the store stays unavailable",
    "the disk of the store is full in the middle",
)
"""Answers that are continued from their text so far.

A server of conversations cannot do that: the answer fails.
"""


@pytest.mark.parametrize(
    ("row", "way"), [pytest.param(*case, id=f"{case[0].ending}: {case[1]}") for case in CHAT_CASES]
)
async def test_one_from_a_server_of_chats_does_too(
    row: Row, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way.background and row.ending in GOES_ON:
        streamed = row.streamed.replace("the answer", "error engine_error")
        row = replace(row, response="failed", streamed=streamed)
    await _ends(row, way, monkeypatch, chats=True)


async def _ends(row: Row, way: Way, monkeypatch: pytest.MonkeyPatch, *, chats: bool) -> None:
    if row.ending in ("the store is unavailable from the beginning", "the store stays unavailable"):
        monkeypatch.setattr(log_writer, "STORE_TIMEOUT", 0.05)
    deadline = DEADLINE if "deadline" in row.ending else None
    world = World(chats=chats, limits=ROOM.get(row.ending, DEFAULTS), deadline_seconds=deadline)
    await world.open()
    async with world.serving() as (server, store):
        case = Case(world, server, store, way, "failed" if chats else "completed")
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                told = await ENDINGS[row.ending](case)
            engine = "continues" if server.engine.load.running else STOPPED
            if row.engine == STOPPED:
                await until(lambda: not server.engine.load.running)
                engine = STOPPED
            if row.stored(way) != NOTHING:
                await until(lambda: store.made)  # which may be after the engine has stopped
            assert (told, await case.stored()) == (row.told(way), row.stored(way))
            assert engine == row.engine
            if row.stored(way) in ("failed", "cancelled") and "store" not in row.ending:
                # All that was said until then, and nothing else.
                assert bool(case.output) == ("before the first event" not in row.ending)
        finally:
            await case.asker.http.aclose()
    await world.close()


def test_the_page_has_every_ending() -> None:
    rows = list(table())
    assert {row.ending for row in rows} == ENDINGS.keys()
    for row in rows:
        assert any(applies(row, way) for way in WAYS), row
