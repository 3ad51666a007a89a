"""A connection to an MCP server, over Streamable HTTP, SSE or the standard streams of a process.

The SDK's client belongs to the task that opened it: if another task leaves it, or it is cancelled inside,
that task fails, and the cause is only in the exception group at its end. So one task owns each connection,
and others call its methods. A connection whose transport failed is not used again; a new one is made.

Logs and errors of the SDK are never passed on unchanged: they may quote URLs, and data of the server.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from typing import Any

import httpx2
import mcp_types as types
import structlog
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from antiphon import __version__
from antiphon.core.encodings import IDENTITY
from antiphon.core.errors import ToolError
from antiphon.core.hosts import ListedTool
from antiphon.core.limits import Limits
from antiphon.core.tool_result import RemoteFailure
from antiphon.tools.mcp.bounds import Bounds, TooMuchError, bounded
from antiphon.tools.mcp.process import process_streams

CLOSING = 3.0
"""Seconds until a connection that does not close is left."""
MAX_MESSAGE = 300
"""The most characters of a server's error message."""
MAX_STDERR = 1000
"""Characters of a line that a server writes to its standard error."""
_INTERNAL, _CLOSED, _TIMEOUT = -32603, -32000, -32001
_BROKEN = "It could not be reached, or it closed the connection."

log = structlog.get_logger(__name__)
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False


class FailureError(Exception):
    """A server cannot be reached, or did not do what was requested."""

    def __init__(self, failure: RemoteFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Target(Struct, frozen=True):
    """An MCP server: a `url` with `headers`, or a `command` with its `environment`.

    `trusted`: the operator has named it, and it may be at any address.
    """

    label: str
    url: str = ""
    headers: Mapping[str, str] = {}
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    trusted: bool = False

    def hide(self, text: str) -> str:
        """The text without secrets of the server."""
        secrets = [*self.headers.values(), *self.environment.values()]
        secrets += [secret.partition(" ")[2] for secret in secrets]
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text.replace(self.url, self.url.partition("?")[0]) if "?" in self.url else text


class Network(Struct, frozen=True):
    """How servers are reached: those that requests name, and those that the operator trusts."""

    guarded: httpx2.AsyncBaseTransport
    direct: httpx2.AsyncBaseTransport

    async def close(self) -> None:
        """Close open resources."""
        await self.guarded.aclose()
        await self.direct.aclose()


class _Watched(httpx2.AsyncBaseTransport):
    """Sends by another transport, which it does not close; keeps the last error, and bounds answers."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, bounds: Bounds) -> None:
        self._inner = inner
        self._bounds = bounds
        self.status: int | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except ToolError as error:
            self._bounds.refusal = error.message
            raise httpx2.ConnectError(error.message) from error
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            self.status = response.status_code
        try:
            response.stream = bounded(response, self._bounds, endless=request.method == "GET")
        except TooMuchError:
            await response.aclose()
            raise
        return response

    async def aclose(self) -> None:
        """Keep the other transport open, which is shared."""


class Connection:
    """A connection to `target`: `open` it first, `close` it last.

    `changed` is called when the server reports that its tools have changed. With `listens` this happens at
    any time, otherwise only during calls.
    """

    def __init__(
        self,
        target: Target,
        network: Network,
        limits: Limits,
        changed: Callable[[], None] = lambda: None,
        *,
        listens: bool = False,
    ) -> None:
        self.target = target
        self._changed = changed
        self._listens = listens
        self._limits = limits
        inner = network.direct if target.trusted else network.guarded
        self._bounds = Bounds(limits)
        self._http = _Watched(inner, self._bounds)
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._why: BaseException | None = None
        self._broken = False
        self._calls = 0
        self._late = False  # a call was not answered in its time, and none since

    @property
    def working(self) -> bool:
        """A call is under way, and no earlier one was late: a server may do one thing at a time."""
        return self._calls > 0 and not self._late

    @property
    def alive(self) -> bool:
        """It can be used."""
        running = self._owner is not None and not self._owner.done()
        return self._client is not None and running and not self._broken

    async def open(self) -> None:
        """Connect. Raises FailureError."""
        try:
            async with asyncio.timeout(self._limits.mcp_connect_seconds):
                for transport in self._transports():
                    await self._try(transport)
                    if self.alive:
                        return
        except TimeoutError as error:
            await self.close()
            raise FailureError(RemoteFailure("protocol", _TIMEOUT, "It did not answer in time.")) from error
        except asyncio.CancelledError:
            await self.close()
            raise
        raise FailureError(self._failure(self._why))

    async def _try(self, transport: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        ready = asyncio.Event()
        self._owner = asyncio.create_task(self._keep_open(transport, ready))
        self._owner.add_done_callback(lambda _: ready.set())
        await ready.wait()

    async def _keep_open(
        self, transport: Callable[[], AbstractAsyncContextManager[Any]], ready: asyncio.Event
    ) -> None:
        """Hold the connection until it is closed. An error that ends it is kept."""
        try:
            async with Client(
                transport(),
                read_timeout_seconds=float(self._limits.mcp_connect_seconds),
                message_handler=self._on_message,
                client_info=types.Implementation(name="antiphon", version=__version__),
                cache=None,
            ) as self._client:
                self._client.session.validate_tool_result = _unchecked  # type: ignore[method-assign,assignment]
                ready.set()
                listening = asyncio.create_task(self._listen(self._client))
                try:
                    await self._closing.wait()
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
        except asyncio.CancelledError:
            if not self._closing.is_set() and (task := asyncio.current_task()) is not None:
                task.uncancel()
        except BaseException as error:
            self._why = _first(error)
            if not isinstance(self._why, Exception):
                raise
            log.debug("an MCP connection ended", server=self.target.label, why=type(self._why).__name__)

    async def _on_message(self, message: object) -> None:
        """The server sent a notification."""
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()

    async def _listen(self, client: Client) -> None:
        """Receive changes from servers without sessions: these send them to listeners only."""
        if not self._listens or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, SubscriptionLost, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._changed()

    async def tools(self) -> tuple[ListedTool, ...]:
        """The tools of the server. Raises FailureError, also for too many."""
        tools: list[ListedTool] = []
        cursor, limit, listed = None, self._limits.mcp_tools, b""
        with self._failing():
            async with asyncio.timeout(self._limits.mcp_connect_seconds):
                while True:
                    page = await self._used().list_tools(cursor=cursor)
                    tools += map(_listed, page.tools)
                    if len(tools) > limit:
                        self._bounds.refuse(f"It lists more than {limit} tools, the limit 'mcp_tools'.")
                    listed += page.model_dump_json(by_alias=True).encode()
                    self._bounds.check(listed)
                    cursor = page.next_cursor
                    if not cursor:
                        return tuple(tools)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Run a tool. Raises FailureError."""
        seconds = float(self._limits.mcp_seconds)
        self._calls += 1
        try:
            with self._failing():
                async with asyncio.timeout(seconds + 1):
                    result = await self._used().call_tool(name, {**arguments}, read_timeout_seconds=seconds)
        except FailureError as error:
            self._late = error.failure.code == _TIMEOUT
            raise
        finally:
            self._calls -= 1
        self._late = False
        return result

    async def close(self) -> None:
        """Close it. The process of a server that does not end is killed."""
        self._closing.set()
        owner, self._client = self._owner, None
        if owner is None or owner.done():
            return
        await asyncio.wait((owner,), timeout=CLOSING)
        if not owner.done():
            owner.cancel()
            await asyncio.wait((owner,), timeout=2 * CLOSING)

    def _used(self) -> Client:
        if not self.alive or self._client is None:
            raise MCPError(_CLOSED, "The connection is closed.")
        return self._client

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Convert errors to FailureError."""
        self._http.status = None
        self._bounds.reset()
        try:
            yield
        except (asyncio.CancelledError, FailureError):
            raise
        except BaseException as error:
            first = _first(error)
            if not isinstance(first, Exception):
                raise
            # The transport is gone; the client's task may not have noticed.
            self._broken |= isinstance(first, MCPError) and first.code == _CLOSED
            raise FailureError(self._failure(first)) from error

    def _failure(self, error: BaseException | None) -> RemoteFailure:  # noqa: PLR0911 - a table
        """The part of an error that a client may see."""
        status, refusal = self._http.status, self._bounds.refusal
        if refusal is not None:
            return RemoteFailure("protocol", _CLOSED, refusal)
        if status is not None:
            words = HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""
            return RemoteFailure(
                "http", status, f"It answered with the status {status} {words}".rstrip() + "."
            )
        match error:
            case MCPError(code=code) if code == _TIMEOUT:
                return RemoteFailure("protocol", _TIMEOUT, "It did not answer in time.")
            case MCPError(code=code) if code == _CLOSED:
                return RemoteFailure("protocol", _CLOSED, _BROKEN)
            case MCPError():
                return RemoteFailure("protocol", error.code, self.target.hide(error.message[:MAX_MESSAGE]))
            case ToolError():
                return RemoteFailure("protocol", _INTERNAL, error.message)
            case TimeoutError():
                return RemoteFailure("protocol", _TIMEOUT, "It did not answer in time.")
            case OSError() | httpx2.HTTPError() | None:
                return RemoteFailure("protocol", _CLOSED, _BROKEN)
        return RemoteFailure("protocol", _INTERNAL, "Its answer is not valid for an MCP server.")

    # Transports

    def _transports(self) -> Iterator[Callable[[], AbstractAsyncContextManager[Any]]]:
        """The transports to try, the most likely first."""
        if self.target.command:
            yield self._process
            return
        sse = httpx2.URL(self.target.url).path.rstrip("/").endswith("/sse")
        yield self._events if sse else self._streamable
        if self._http.status is not None and self._http.status not in (401, 403):
            self._http.status = None
            yield self._streamable if sse else self._events

    @asynccontextmanager
    async def _streamable(self) -> AsyncIterator[Any]:
        async with (
            self._http_client() as client,
            streamable_http_client(
                self.target.url, http_client=client, max_sse_event_size=self._limits.mcp_bytes
            ) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[Any]:
        def factory(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
            return self._http_client()

        async with sse_client(self.target.url, httpx_client_factory=factory) as streams:
            yield streams

    def _http_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=self._http,
            headers={
                "User-Agent": f"antiphon/{__version__}",
                "Accept-Encoding": IDENTITY,
                **self.target.headers,
            },
            timeout=httpx2.Timeout(self._limits.mcp_connect_seconds, read=self._limits.mcp_seconds),
            trust_env=False,
        )

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Any]:
        target = self.target
        async with (
            _logged_lines(target) as errors,
            process_streams(target.command, target.environment, errors, self._bounds) as streams,
        ):
            yield streams


async def _unchecked(_name: str, _result: types.CallToolResult) -> None:
    """Leave structured content unchecked.

    A server's schema for it is no demand of ours, and the patterns in it are searched by an engine for which
    some take forever.
    """


@asynccontextmanager
async def _logged_lines(target: Target) -> AsyncIterator[Any]:
    """A file whose lines are logged, for the standard error of a server."""
    reading, writing = os.pipe()
    lines = asyncio.StreamReader(limit=MAX_STDERR)
    loop = asyncio.get_running_loop()
    with os.fdopen(writing, "w") as file:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb")
        )
        logging_lines = asyncio.create_task(_log_lines(target, lines))
        try:
            yield file
        finally:
            file.close()
            await asyncio.wait((logging_lines,), timeout=0.2)  # its last log lines
            logging_lines.cancel()
            transport.close()


async def _log_lines(target: Target, lines: asyncio.StreamReader) -> None:
    while True:
        try:
            line = await lines.readuntil()
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError:
            line = await lines.read(MAX_STDERR)
        if not line:
            return
        log.info("an MCP server logged", server=target.label, line=target.hide(_on_one_line(line)))


def _on_one_line(line: bytes) -> str:
    """The line without characters that could fake another log line."""
    return re.sub(r"[\x00-\x1f\x7f]+", " ", line.decode(errors="replace")).strip()


def _first(error: BaseException | None) -> BaseException | None:
    """The first exception in a group, however deep."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _listed(tool: types.Tool) -> ListedTool:
    annotations = tool.annotations
    return ListedTool(
        tool.name,
        tool.description or tool.title,
        tool.input_schema,
        None
        if annotations is None
        else annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
    )
