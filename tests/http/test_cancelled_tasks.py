"""ASGI servers that cancel the task of a request whose client has left: the answer ends as under our own server.

It is `client_left` in the log, `cancelled` in the store, and no slot is kept. A harness in the place of the server cancels
as Ray Serve does, 3 ms after the disconnect, or without it, or again and again, as cancel scopes do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.types import ASGIApp, Message

from antiphon.engines.script import pieces_of, token_id
from antiphon.http.leaving import LeavingMiddleware
from antiphon.http.request import unless_disconnected
from antiphon.render.fill_in import FAMILIES
from tests.acting import ActingTool
from tests.http.test_chat_server_tools import CODE, PYTHON_CALL
from tests.http.test_fill_in import Coder
from tests.http.test_observing import Line, line_of
from tests.run.support import until
from tests.server import NO_TLS, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT: list[dict[str, Any]] = [
    {"when": "says nothing yet", "output": "word", "delay_ms": 60_000},
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 2},
    {"when": "compute", "output": PYTHON_CALL},
    {"output": "word word"},
]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
APIS: dict[str, Callable[[str], dict[str, Any]]] = {
    CHAT: lambda text: {"messages": [{"role": "user", "content": text}], "store": True},
    RESPONSES: lambda text: {"input": text},
    MESSAGES: lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 50_000},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 50_000},
    "/api/chat": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/api/generate": lambda text: {"prompt": text},
    f"{RESPONSES}/compact": lambda text: {"input": text},
    "/infill": lambda text: {"input_prefix": text, "input_suffix": ".", "n_predict": 50_000},
    "/inference/v1/generate": lambda text: {
        "token_ids": [token_id(piece) for piece in pieces_of(text)],
        "sampling_params": {"max_tokens": 50_000},
    },
}
"""The paths that answer, with a request for each."""
WHOLE = frozenset({f"{RESPONSES}/compact"})
"""Those that do not stream."""
WITH_TOOLS = (CHAT, RESPONSES, MESSAGES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[tuple[Running, ASGIApp, ActingTool]]:
    """One answer at a time; the application of a server, and a tool."""
    apps: list[ASGIApp] = []
    tool = ActingTool(results=[None])

    def keep(asgi: ASGIApp) -> ASGIApp:
        apps.append(asgi)
        return asgi

    engine = Coder(FAMILIES[0], SCRIPT, parallel=1)
    for line in SCRIPT:
        await engine.tokenize([line.get("when", "")])  # so that it knows the texts of their tokens
    async with running(engine, before=keep, tools=[tool]) as server:
        yield server, apps[0], tool


_numbers = count()


class Call:
    """A request in a task, as a server runs the application for it."""

    kind = "http"

    def __init__(self, asgi: ASGIApp, path: str, body: Mapping[str, Any]) -> None:
        self.id = f"cancelled-{next(_numbers)}"
        self.sent = b""
        self.after = 0
        """Messages that were sent when the task was cancelled."""
        self._left = asyncio.Event()
        self._cancelled = self._broken = False
        self._messages = self.messages(json.dumps(body))
        scope = {
            "type": self.kind,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            **({"method": "POST"} if self.kind == "http" else {}),
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"x-request-id", self.id.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        self.task = asyncio.create_task(asgi(scope, self._receive, self._send))  # type: ignore[arg-type]

    def messages(self, body: str) -> list[Message]:
        """What the client sends."""
        return [{"type": "http.request", "body": body.encode(), "more_body": False}]

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self._left.wait()
        if self._broken:
            raise OSError("the task was cancelled")
        return {"type": f"{self.kind}.disconnect"}

    async def _send(self, message: Message) -> None:
        self.after += self._cancelled
        self.sent += message.get("body", message.get("text", "").encode())

    def leave(self) -> None:
        """Tell the application that its client has left."""
        self._left.set()

    def lose(self) -> None:
        """Fail to receive anything else."""
        self._broken = True
        self._left.set()

    def cancel(self) -> None:
        self.task.cancel()
        # The task learns of it in the next turn of the loop, in which what was scheduled before is still sent.
        asyncio.get_running_loop().call_soon(self._note)

    def _note(self) -> None:
        self._cancelled = True


class SocketCall(Call):
    """A WebSocket with a turn."""

    kind = "websocket"

    def messages(self, body: str) -> list[Message]:
        return [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": body}]


async def told_first(call: Call) -> None:
    """As Ray Serve."""
    call.leave()
    await asyncio.sleep(0.003)
    call.cancel()


async def at_once(call: Call) -> None:
    call.cancel()


async def again_and_again(call: Call) -> None:
    """As a cancel scope of anyio: in each iteration of the loop, until the task has ended."""
    while not call.task.done():
        call.cancel()
        await asyncio.sleep(0)


async def failing_first(call: Call) -> None:
    """As Ray Serve, if its proxy drops the request before the replica knows of it."""
    call.lose()
    await asyncio.sleep(0.003)
    call.cancel()


CANCELS = (told_first, failing_first, at_once, again_and_again)
Cancel = Callable[[Call], Awaitable[None]]


async def ends(server: Running, lines: list[Line], call: Call, cancel: Cancel) -> tuple[int, str | None]:
    """The status and the finish of a request that the server cancels."""
    await cancel(call)
    with (
        pytest.raises(asyncio.CancelledError)
        if cancel not in (told_first, failing_first)
        else suppress(asyncio.CancelledError)
    ):
        await call.task
    line = await line_of(lines, call.id)
    await until(lambda: not (server.engine.load.running or server.engine.load.waiting))
    assert call.after == 0
    return line["status"], line.get("finish")


@pytest.mark.parametrize("cancel", CANCELS)
@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_task_is_a_client_that_left(
    server: Any, lines: list[Line], path: str, cancel: Cancel, streamed: bool
) -> None:
    if streamed and path in WHOLE:
        return
    running, asgi, _ = server
    for text in ("says nothing yet", "endless"):
        before = running.engine.steps
        call = Call(asgi, path, {"model": "scripted", **APIS[path](text), "stream": streamed})
        begun = text == "endless"
        await until(partial(has_begun, running, call, before + 5 if begun else None, sent=streamed))
        expected = 200 if streamed and begun else 499
        assert await ends(running, lines, call, cancel) == (expected, "client_left"), call.sent
        if path == RESPONSES and streamed and begun:
            response = json.loads(call.sent.split(b"data: ")[1].split(b"\n")[0])["response"]
            assert await status_of(running, response["id"]) == "cancelled"


def has_begun(server: Running, call: Call, steps: int | None, *, sent: bool) -> bool:
    """The engine computes the answer of a request, has made so many `steps`, and something was `sent`."""
    assert not call.task.done(), call.sent
    if steps is None:
        return server.engine.load.running > 0
    return server.engine.steps > steps and (not sent or call.sent != b"")


@pytest.mark.parametrize("cancel", CANCELS)
@pytest.mark.parametrize("text", ["says nothing yet", "endless"])
async def test_a_turn_on_a_socket_whose_task_is_cancelled(server: Any, text: str, cancel: Cancel) -> None:
    running, asgi, _ = server
    before = running.engine.steps
    call = SocketCall(asgi, RESPONSES, {"type": "response.create", "model": "scripted", "input": text})
    begun = text == "endless"
    await until(partial(has_begun, running, call, before + 5 if begun else None, sent=begun))
    await cancel(call)
    with suppress(asyncio.CancelledError):
        await call.task
    await until(lambda: not (running.engine.load.running or running.engine.load.waiting))
    if begun:
        created, _ = json.JSONDecoder().raw_decode(call.sent.decode())
        assert await status_of(running, created["response"]["id"]) == "cancelled"


async def status_of(server: Running, response_id: str) -> Any:
    """The status of a stored response."""
    async with httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http:
        return (await http.get(f"{RESPONSES}/{response_id}")).json()["status"]


@pytest.mark.parametrize("cancel", CANCELS)
@pytest.mark.parametrize("path", WITH_TOOLS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_while_a_tool_runs(
    server: Any, lines: list[Line], path: str, cancel: Cancel, streamed: bool
) -> None:
    running, asgi, tool = server
    tool.running.clear()
    body = {"model": "scripted", **APIS[path]("compute"), "tools": [TOOL[path]], "stream": streamed}
    call = Call(asgi, path, body)
    await until(lambda: tool.running.is_set() or call.task.done())
    assert not call.task.done(), call.sent
    assert (await ends(running, lines, call, cancel))[1] == "client_left"


TOOL: dict[str, Any] = {
    CHAT: CODE,
    RESPONSES: CODE,
    MESSAGES: {"type": "code_execution_20250825", "name": "code_execution"},
}


async def test_a_request_whose_body_has_not_come(server: Any, lines: list[Line]) -> None:
    running, asgi, _ = server
    call = Call(asgi, CHAT, {})
    call._messages = []
    await asyncio.sleep(0)
    assert await ends(running, lines, call, at_once) == (499, "client_left")


class Computing:
    """Work that takes a moment to end when it is cancelled, and then fails."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            await self.may_end.wait()
            raise ValueError


async def test_a_cancellation_while_work_ends_is_not_lost() -> None:
    """`unless_disconnected` waits for work that it has cancelled, and its own task is cancelled then."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    work = Computing()
    waiting = asyncio.create_task(unless_disconnected(Request({"type": "http"}, receive), work.run()))
    await asyncio.sleep(0)
    await work.ending.wait()
    waiting.cancel()
    await asyncio.sleep(0)
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_errors_of_an_application_reach_its_server() -> None:
    async def fails(*_: Any) -> None:
        raise ValueError("broken")

    call = Call(LeavingMiddleware(fails), "/", {})
    with pytest.raises(ValueError, match="broken"):
        await call.task


async def test_an_application_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.http.leaving.MAX_SECONDS", 0)
    ended = []

    async def hangs(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    call = Call(LeavingMiddleware(hangs), "/", {})
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert ended


async def test_what_is_sent_to_a_client_that_has_left_is_dropped() -> None:
    """Also what waits to be sent when it leaves: a server may not take it any more."""
    sent: list[Message] = []
    stuck = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) > 1:
            stuck.set()
            await asyncio.Event().wait()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        for number in range(4):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    task = asyncio.create_task(LeavingMiddleware(application)({"type": "http"}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    await stuck.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [message["body"] for message in sent] == [b"0", b"1"]
