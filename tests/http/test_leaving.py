"""Clients that leave: the log and the metrics say 499 and `client_left`, in every API, at every moment.

That is no failure of the server: nothing is a 5xx, no error is logged, and every slot is free afterwards.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count, product
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response
from starlette.routing import Route
from websockets.asyncio.client import connect

from antiphon.core.errors import EngineBusyError
from antiphon.engines.engine import Capabilities, Task
from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import ROUTES
from antiphon.http.observing import ObservingMiddleware
from antiphon.http.protocol import STREAM, StreamProtocol
from antiphon.http.routes import ApiTable
from tests.http.test_observing import Line, line_of
from tests.run.support import until
from tests.server import NO_TLS, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT: list[dict[str, Any]] = [
    {"when": "says nothing yet", "output": "word", "delay_ms": 60_000},
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 2},
    {"output": "word word"},
]
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
STORED, NOT_STORED, BACKGROUND = {"store": True}, {"store": False}, {"background": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    """One answer at a time."""
    async with running(SCRIPT, parallel=1) as server:
        yield server


_numbers = count()


class Client:
    """A client that sends one request, or the same several times, and leaves."""

    def __init__(
        self,
        server: Running,
        path: str,
        body: bytes,
        times: int = 1,
        *,
        fields: str = "",
        method: str = "POST",
        version: str = "1.1",
    ) -> None:
        self.id = f"leaving-{next(_numbers)}"
        head = f"{method} {path} HTTP/{version}\r\nhost: localhost\r\nx-request-id: {self.id}\r\n{fields}"
        self._requests = (f"{head}content-length: {len(body)}\r\n\r\n".encode() + body) * times
        self._server = server

    async def __aenter__(self) -> "Client":
        parts = urlsplit(self._server.url)
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.transport.abort()

    async def send(self, but: int = 0) -> None:
        """Send everything `but` the last bytes; then the server has begun, or has answered."""
        before = asyncio.all_tasks()  # of which some may end: those of clients that have left
        self._writer.write(self._requests[: len(self._requests) - but])
        answer = self._reader._buffer  # type: ignore[attr-defined]
        await until(lambda: asyncio.all_tasks() - before or answer)

    def send_later(self, times: int) -> None:
        """Send the request more often, while the first is answered."""
        self._writer.write(self._requests * times)

    async def hear(self, text: bytes) -> None:
        """Wait for this part of the answer."""
        async with asyncio.timeout(20):
            await self._reader.readuntil(text)

    def leave(self, *, abruptly: bool) -> None:
        """Close the connection, or break it off."""
        if abruptly:
            self._writer.transport.abort()
        else:
            self._writer.close()


async def ended(server: Running, lines: list[Line], client: Client) -> tuple[int, str | None]:
    """The status and the finish of a client's first request, when all that it has begun is over."""
    line = await line_of(lines, client.id)
    await until(lambda: is_free(server))
    return line["status"], line.get("finish")


def is_free(server: Running) -> bool:
    return not (server.engine.load.running or server.engine.load.waiting)


async def counted(server: Running) -> dict[tuple[str, str], float]:
    """The number of requests by their path and the class of their status."""
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
        text = (await http.get("/metrics")).text
    return {
        (sample.labels["handler"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "http_requests_total" and sample.labels["method"] != "GET"
    }


# Answers


class Way(Struct, frozen=True):
    """How an answer is asked for."""

    path: str
    streamed: bool = False
    more: dict[str, bool] = {}

    def body(self, text: str) -> bytes:
        said = [{"role": "user", "content": text}]
        given: dict[str, Any] = {
            COMPLETIONS: {"prompt": text, "max_tokens": 50_000},
            MESSAGES: {"messages": said, "max_tokens": 50_000},
            CHAT: {"messages": said},
            f"{CHAT}/batch": {"messages": [said]},
        }.get(self.path, {"input": text})
        return json.dumps({"model": "scripted", "stream": self.streamed, **given, **self.more}).encode()

    def __str__(self) -> str:
        more = [f"{name}={value}" for name, value in self.more.items()]
        return " ".join([self.path, "streamed" if self.streamed else "whole", *more])


WAYS = [
    *(Way(path, streamed) for path in (COMPLETIONS, MESSAGES) for streamed in (False, True)),
    *(
        Way(path, streamed, more)
        for path, streamed, more in product((CHAT, RESPONSES), (False, True), (STORED, NOT_STORED))
    ),
    *(Way(path) for path in (f"{RESPONSES}/compact", f"{CHAT}/batch")),
]
HOLDER = Way(CHAT, streamed=True)
"""Holds the only slot, where an answer is to wait for it."""


async def before_the_end_of_its_body(server: Running, client: Client, way: Way) -> None:
    await client.send(but=3)


async def while_it_waits(server: Running, client: Client, way: Way) -> None:
    await client.send()
    await until(lambda: server.engine.load.waiting)


async def before_the_first_event(server: Running, client: Client, way: Way) -> None:
    await client.send()
    await until(lambda: server.engine.load.running)


async def in_the_middle(server: Running, client: Client, way: Way) -> None:
    before = server.engine.steps
    await client.send()
    if way.streamed:
        await client.hear(b"word")
    await until(lambda: server.engine.steps > before + 5)


Moment = Callable[[Running, Client, Way], Awaitable[None]]
MOMENTS: dict[Moment, str] = {
    before_the_end_of_its_body: "Hi",
    while_it_waits: "Hi",
    before_the_first_event: "says nothing yet",
    in_the_middle: "endless",
}
"""Each with the text of a request that has it."""


async def leaves(
    server: Running, lines: list[Line], way: Way, moment: Moment, *, abruptly: bool = True, **how: Any
) -> tuple[int, str | None]:
    """The status and the finish of a request whose client leaves at this moment."""
    async with AsyncExitStack() as stack:
        if moment is while_it_waits:
            holder = await stack.enter_async_context(Client(server, CHAT, HOLDER.body("endless")))
            await in_the_middle(server, holder, HOLDER)
        client = Client(server, way.path, way.body(MOMENTS[moment]), **how)
        await moment(server, await stack.enter_async_context(client), way)
        client.leave(abruptly=abruptly)
        await line_of(lines, client.id)
    return await ended(server, lines, client)


def expected(way: Way, moment: Moment) -> tuple[int, str]:
    """What is to be seen; in the middle of a stream its status was sent."""
    return 200 if way.streamed and moment is in_the_middle else 499, "client_left"


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_client_that_leaves_is_no_failure(server: Running, lines: list[Line], way: Way) -> None:
    before, left = await counted(server), 0
    for moment, times, abruptly in product(MOMENTS, (1, 3), (True, False)):
        if times > 1 and moment is before_the_end_of_its_body:  # of which the first has come
            continue
        seen = await leaves(server, lines, way, moment, abruptly=abruptly, times=times)
        assert seen == expected(way, moment), moment.__name__
        left += seen[0] == 499
    after = await counted(server)
    assert after[way.path, "499"] - before.get((way.path, "499"), 0) == left
    assert {status for _, status in after} <= {"499", "2xx"}


@pytest.mark.parametrize("abruptly", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_who_leaves_is_noticed_though_later_requests_wait(
    server: Running, lines: list[Line], monkeypatch: pytest.MonkeyPatch, way: Way, abruptly: bool
) -> None:
    """They come when the answer to the first is waited for already."""
    received = count(1)
    take, came = StreamProtocol.on_message_complete, asyncio.Event()

    def counting(protocol: StreamProtocol) -> None:
        take(protocol)
        if next(received) == 3:
            came.set()

    monkeypatch.setattr(StreamProtocol, "on_message_complete", counting)
    async with Client(server, way.path, way.body(MOMENTS[before_the_first_event])) as client:
        await before_the_first_event(server, client, way)
        client.send_later(2)
        await came.wait()
        client.leave(abruptly=abruptly)
        line = await line_of(lines, client.id)
    assert (line["status"], line.get("finish")) == (499, "client_left")
    await until(lambda: is_free(server))


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_of_http_1_0_that_leaves_is_no_failure(
    server: Running, lines: list[Line], streamed: bool
) -> None:
    way = Way(CHAT, streamed)
    for moment in MOMENTS:
        assert await leaves(server, lines, way, moment, version="1.0") == expected(way, moment)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_background_response_needs_no_client(
    server: Running, lines: list[Line], streamed: bool
) -> None:
    """Its reader leaves; it goes on, and gives its slot back when it is cancelled."""
    way = Way(RESPONSES, streamed, BACKGROUND)
    for abruptly in (True, False):
        async with Client(server, RESPONSES, way.body("endless")) as client:
            await (in_the_middle(server, client, way) if streamed else client.send())
            client.leave(abruptly=abruptly)
            line = await line_of(lines, client.id)
            assert line["status"] in ((200,) if streamed else (200, 499))
            await until(lambda: server.engine.load.running)
        async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
            for response in (await http.get(f"{RESPONSES}?background=true")).json()["data"]:
                if response["status"] in ("queued", "in_progress"):
                    assert (await http.post(f"{RESPONSES}/{response['id']}/cancel")).status_code == 200
        await until(lambda: is_free(server))
    assert {status for _, status in await counted(server)} <= {"499", "2xx"}


@pytest.mark.parametrize("moment", [while_it_waits, before_the_first_event, in_the_middle])
async def test_a_turn_of_a_websocket_whose_client_leaves_is_no_failure(
    server: Running, lines: list[Line], moment: Any
) -> None:
    waits = moment is while_it_waits
    for abruptly in (True, False):
        async with AsyncExitStack() as stack:
            if waits:
                holder = await stack.enter_async_context(Client(server, CHAT, HOLDER.body("endless")))
                await in_the_middle(server, holder, HOLDER)
            socket = await stack.enter_async_context(connect(server.url.replace("http", "ws") + RESPONSES))
            turn = {"type": "response.create", "model": "scripted", "input": MOMENTS[moment]}
            for _ in range(2):  # of which the second waits
                await socket.send(json.dumps(turn))
            if moment is in_the_middle:
                while b"word" not in await socket.recv(decode=False):
                    pass
            await until(lambda: server.engine.load.waiting if waits else server.engine.load.running)
            if abruptly:
                socket.transport.abort()
        await until(lambda: is_free(server))

    def turns() -> list[Line]:
        return [line for line in lines if line.get("method") == "WEBSOCKET"]

    await until(lambda: len(turns()) >= 2)
    assert [(line["status"], line["finish"]) for line in turns()] == [(101, "client_left")] * 2
    assert (RESPONSES, "5xx") not in await counted(server)


# Other requests

FORM = "content-type: multipart/form-data; boundary=b\r\n"
FIELD = b'--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
END = b"--b--\r\n"


async def test_every_body_may_be_broken_off(server: Running, lines: list[Line]) -> None:
    """Of JSON, and of forms; some paths are answered without one."""
    form = FIELD % (b"file", b'; filename="a"', b"x" * 9000) + END
    left = 0
    for route in ROUTES:
        if not isinstance(route, Route) or "POST" not in (route.methods or ()):
            continue
        path = re.sub(r"\{.*?\}", "none", route.path)
        for fields, body in (("", b'{"a": "b"}'), (FORM, form)):
            async with Client(server, path, body, fields=fields) as client:
                await client.send(but=3)
                client.leave(abruptly=True)
                status, finish = await ended(server, lines, client)
            assert status < 500, path
            assert (finish == "client_left") is (status == 499), path
            left += status == 499
    assert left > 30


class Waiting(ScriptedEngine):
    """It computes nothing, and notices when nothing is wanted any more."""

    def __init__(self) -> None:
        super().__init__([{"output": "x"}], capabilities=Capabilities(tasks=frozenset(Task)))
        self.waiting = 0

    async def _wait(self) -> Any:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    async def embed(self, request: Any) -> Any:
        await self._wait()

    async def score(self, pairs: Any) -> Any:
        await self._wait()

    async def transcribe(self, audio: Any) -> AsyncIterator[bytes]:
        await self._wait()
        yield b""


AUDIO = FIELD % (b"file", b'; filename="a.wav"', b"RIFF") + FIELD % (b"model", b"", b"scripted") + END
COMPUTED: dict[str, Any] = {
    "/v1/embeddings": {"input": "text"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/audio/transcriptions": AUDIO,
}


async def test_computations_end_when_their_clients_leave(lines: list[Line]) -> None:
    engine = Waiting()
    async with running(engine) as server:
        for (path, given), times, abruptly in product(COMPUTED.items(), (1, 2), (True, False)):
            is_form = isinstance(given, bytes)
            body = given if is_form else json.dumps({"model": "scripted", **given}).encode()
            async with Client(server, path, body, times, fields=FORM if is_form else "") as client:
                await client.send()
                await until(lambda: engine.waiting)
                client.leave(abruptly=abruptly)
                await until(lambda: not engine.waiting)
                assert await ended(server, lines, client) == (499, "client_left"), path
        assert {status for _, status in await counted(server)} == {"499"}


async def test_what_comes_after_the_client_has_left_is_not_its_status(
    server: Running, lines: list[Line]
) -> None:
    """A handler that does not look for its client answers nobody, also with an error."""
    connection = SimpleNamespace(disconnected=True)
    scope = {"type": "http", "method": "POST", "path": CHAT, "extensions": {STREAM: connection}}

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await Response("Hello")(scope, receive, send)

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise EngineBusyError

    async def nobody(*_: Any) -> Any: ...

    for asgi in (answers, fails):
        await ObservingMiddleware(asgi, server.app, ApiTable(ROUTES))(
            {**scope, "headers": []}, nobody, nobody
        )
    assert [(line["status"], line["finish"]) for line in lines if line["event"] == "request"] == [
        (499, "client_left")
    ] * 2


async def test_downloads_that_are_broken_off_are_no_failure(lines: list[Line]) -> None:
    async with running(SCRIPT) as server:
        async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
            large = {"file": ("a.txt", b"x" * 20_000_000)}
            made = (await http.post("/v1/files", files=large, data={"purpose": "user_data"})).json()
        for abruptly in (True, False):
            async with Client(server, f"/v1/files/{made['id']}/content", b"", method="GET") as client:
                await client.send()
                await client.hear(b"xxx")
                client.leave(abruptly=abruptly)
                assert (await ended(server, lines, client))[0] == 200
