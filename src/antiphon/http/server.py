"""Runs the server: sockets, signals, and the order of starting and stopping.

The socket listens before the model is loaded, so that /health can answer 503 instead of refusing the
connection. After the first Ctrl-C (or SIGTERM), running answers may end, new ones are refused and /health
answers 503; a second one stops running answers, too. SIGHUP reads the file of keys again.
"""

import asyncio
import ctypes
import gc
import resource
import shlex
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import msgspec
import structlog
import uvicorn
from starlette.routing import BaseRoute

from antiphon.app.app import App
from antiphon.compose import Runtime, compose
from antiphon.config import OPEN, Settings
from antiphon.core.errors import AntiphonError
from antiphon.core.limits import Limits
from antiphon.engines.engine import Task
from antiphon.http.app import ROUTES, build
from antiphon.http.protocol import Crowded, StreamProtocol, never_crowded, protocols
from antiphon.log import configure, say
from antiphon.option_sources import unread_variables
from antiphon.processes.listening import finishing, listening, requests, url_of
from antiphon.run.bounded import warm
from antiphon.run.models import Health, ModelEntry

log = structlog.get_logger()

FILES = 512
"""Open files besides connections: the store's, those of tools and of other servers."""
SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter lock while the event loop waits for it.

With Python's default of 0.005 seconds, each wait, and each log line, takes that long while a long prompt is
rendered.
"""
GC_THRESHOLD = 50_000
"""Allocated objects minus freed ones before the collector looks for cycles. Python's default is 700."""
LARGE_BUFFER = 4 * 1024 * 1024
"""Buffers of at least this number of bytes are returned to the system when they are freed. Those of a long
conversation, its text and its tokens, are a megabyte each, and many in each turn."""
FREE_AT_END = 16 * 1024 * 1024
"""Free bytes at the end of the heap that are kept for the next request, until the next trim."""
KEPT = 256 * 1024
"""Bytes there that a trim leaves."""
TRIM_SECONDS = 2.0
"""Interval in which the C library may return free memory in the middle of its heap, too. Without it, an idle
server has 5 % more (`bench/memory.py`)."""
TRIM_CPU_SECONDS = 0.5
"""It does so after this much CPU time: it takes 1.4 ms, and some of the memory is needed again at once."""
IDLE_TRIM_CPU_SECONDS = 0.05
"""The same for a server that has become idle: it does not need the memory."""
IDLE_CPU_SECONDS = 0.005
"""A server is idle if an interval took less."""
ARENAS = 2
"""Heaps of the C library: each keeps memory, and Python's threads run one at a time anyway."""
SIGNAL_SECONDS = 0.1
"""How long a second Ctrl-C may go unnoticed."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # in malloc.h
LAST_BYTES_SECONDS = 5
"""How long clients may take to read the rest of a response before their connections are closed."""
LAST_EVENTS_SECONDS = 1
"""How long stopped answers may take to send their last events."""


Greeting = Callable[[str], Iterable[str]]
"""The lines that are printed when the server listens at a URL."""


def serve(settings: Settings, greeting: Greeting | None = None) -> None:
    """Serve until Ctrl-C, which raises KeyboardInterrupt. Raises AntiphonError if the server cannot start.

    Without a `greeting`, it prints its address, and a command to try.
    """
    tune()
    configure(settings.log_level, settings.log_format)
    for warning in unread_variables(settings):
        log.warning(warning)
    check_tls(settings)
    runtime = compose(settings)
    server = HttpServer(runtime, connections=possible_connections(settings.limit))
    with (
        server.taking_signals(),
        listening(settings.host, settings.port, settings.unix_socket) as listener,
        asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner,
    ):
        if settings.open_to_all:
            log.warning(OPEN, host=settings.host)
        lines = greeting or partial(usual_greeting, runtime.app)

        def greet() -> None:
            say(*lines(url_of(listener, tls=server.config.is_ssl)))

        runner.run(run(server, listener, greet))
    if server.received is signal.SIGINT:
        raise KeyboardInterrupt


def usual_greeting(app: App, url: str) -> Iterator[str]:
    """The lines for an operator: the address, and what to try there."""
    yield f"listening on {url}"
    if (tried := _tried(app.models.entries()[0])) is not None:
        yield f"try: {_curl(url, *tried, app.keys.guarded)}"
    if not url.startswith("unix:"):
        yield f"or open {url}{app.settings.root_path}/ in a browser"


async def run(server: "HttpServer", listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve and load at the same time, until the server is stopped."""
    runtime, loop = server.runtime, asyncio.get_running_loop()
    reload = runtime.app.keys.reload
    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(reload))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading, trimming = asyncio.create_task(runtime.start()), asyncio.create_task(trim_forever())
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
        if not server.should_exit:
            tune_gc()
            warm()
            runtime.app.metrics.delay.watch(loop)
            on_ready()
        await serving
    finally:
        server.stop()
        loading.cancel()
        trimming.cancel()
        await asyncio.gather(serving, loading, trimming, return_exceptions=True)
        # Leases first, so that other servers continue at once; then the engines, so that running answers
        # fail; then the last events of these; and the store last, because these may have to be stored.
        await runtime.worker.release()
        await runtime.app.models.stop()
        await server.finish_requests()
        await runtime.stop()


def config_of(
    app: App,
    connections: int | None = None,
    *,
    routes: Sequence[BaseRoute] = ROUTES,
    crowded: Crowded = never_crowded,
    **changes: Any,
) -> uvicorn.Config:
    """The configuration of uvicorn for this application."""
    settings = app.settings
    options: dict[str, Any] = {
        "lifespan": "off",
        "log_config": None,  # its lines are those of `log.py`
        "access_log": False,
        "proxy_headers": False,  # see `build`
        "server_header": False,
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
        **protocols(settings, connections, crowded),
    }
    return uvicorn.Config(build(app, routes=routes), **options | changes)


class HttpServer(uvicorn.Server):
    """A uvicorn server that records signals, and prints their effect. It has at most `connections`."""

    def __init__(
        self, runtime: Runtime, connections: int | None = None, crowded: Crowded = never_crowded
    ) -> None:
        super().__init__(config_of(runtime.app, connections, crowded=crowded))
        self.runtime = runtime
        self._drain = runtime.app.settings.drain_seconds
        self.received: signal.Signals | None = None
        self._stopping = asyncio.Event()

    @contextmanager
    def taking_signals(self) -> Iterator[None]:
        """Handle signals, before the socket listens: Python may lose exceptions of its own handler."""
        before = {key: signal.signal(key, self.handle_exit) for key in (signal.SIGINT, signal.SIGTERM)}
        # Until the loop runs, and can read the keys again: by itself a SIGHUP ends a process.
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            yield
        finally:
            for key, handler in before.items():
                signal.signal(key, handler)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: signals are handled already, and uvicorn would raise them again."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: the first drains, the second stops."""
        self.runtime.app.models.health = Health.DRAINING
        self.runtime.worker.drain()
        self.received = signal.Signals(sig)
        self.force_exit = self.should_exit
        self.stop()
        self.tell("stopping" if self.force_exit else finishing(len(self.server_state.tasks), self._drain))

    def tell(self, line: str) -> None:
        """Tell the operator what the server does."""
        say(line)

    def stop(self) -> None:
        """Begin to stop. Safe in a handler of signals, too: the event loop may be asleep, or not run yet."""
        self.should_exit = True
        try:
            asyncio.get_running_loop().call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            self._stopping.set()

    async def main_loop(self) -> None:
        """Wait until it has to stop. uvicorn's own loop wakes up ten times a second to check."""
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running answers end before the socket is closed: until then, new requests get a 503."""
        for connection in self.server_state.connections:
            if not isinstance(connection, StreamProtocol):  # a WebSocket, which would stay open
                connection.shutdown()
        running = set(self.server_state.tasks)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain
        while running and not self.force_exit:
            _, running = await asyncio.wait(running, timeout=SIGNAL_SECONDS)
            if running and loop.time() >= end:
                self.tell(f"stopping: {requests(len(running))} did not end in time")
                self.force_exit = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_BYTES_SECONDS):
                await super().shutdown(sockets)
        for connection in [*self.server_state.connections]:
            if not self.force_exit:  # else its answer is still to be stopped, see `finish_requests`
                connection.transport.abort()

    async def finish_requests(self) -> None:
        """Let the requests whose answers were stopped end by themselves; cancel those that do not."""
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LAST_EVENTS_SECONDS)
            for task in late:
                task.cancel()
            if late and (await asyncio.wait(late, timeout=LAST_EVENTS_SECONDS))[1]:
                for connection in [*self.server_state.connections]:  # their clients do not read
                    connection.transport.abort()
            await asyncio.gather(*late, return_exceptions=True)


def possible_connections(limits: Limits) -> int:
    """The largest number of connections: the limit, if the system allows that many files."""
    configured = limits.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < configured + FILES:
        soft = configured + FILES if hard == resource.RLIM_INFINITY else min(configured + FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = min(configured, max(soft - FILES, soft // 2))
    if possible < configured:
        log.warning(
            "the system allows for few open files: raise `ulimit -n`", connections=possible, files=soft
        )
    return possible


async def trim_forever() -> None:
    """Return free memory at intervals: large answers leave much of it between used parts."""
    with suppress(AttributeError, OSError):  # another libc
        trim, trimmed, before = ctypes.CDLL(None).malloc_trim, 0.0, 0.0
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            now = time.process_time()
            idle = now - before < IDLE_CPU_SECONDS
            if now - trimmed > (IDLE_TRIM_CPU_SECONDS if idle else TRIM_CPU_SECONDS):
                await asyncio.to_thread(trim, KEPT)
                now = trimmed = time.process_time()
            before = now


def tune() -> None:
    """Set the interpreter and the C library up for a server."""
    _tune_malloc()
    sys.setswitchinterval(SWITCH_SECONDS)


def _tune_malloc() -> None:
    """Make glibc keep the memory of the last request for the next; `trim_forever` returns what is not needed.

    If it returned buffers of 256 kB at once, the last turns of a long session would take a fifth more
    CPU (`bench/agent.py`): the system has to clear each page that it gives again.
    """
    with suppress(AttributeError, OSError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGE_BUFFER)
        mallopt(_TRIM_THRESHOLD, FREE_AT_END)
        mallopt(_ARENA_MAX, ARENAS)


def tune_gc() -> None:
    """Exclude permanent objects from garbage collection, and reduce its runs.

    What a request needed is freed without it (`tests/http/test_garbage.py`). Without this, a full answer
    takes 25 % longer (`bench/compare.py`), of which half is a collection of 90 ms that all answers wait for.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def check_tls(settings: Settings) -> None:
    """Raise AntiphonError for an invalid certificate, or an invalid key of one."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if (certificate is None) != (key is None):
        raise AntiphonError("--tls-certificate and --tls-key go together. Give both.")
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise AntiphonError(
            f"Cannot use {certificate} and {key} for TLS: {error.strerror or error}."
        ) from error


def _tried(entry: ModelEntry) -> tuple[str, object] | None:
    """The path and the body of a short request that shows what a model does; None if there is none."""
    tasks = {Task.GENERATE} if entry.card is None else entry.card.capabilities.tasks
    if Task.GENERATE in tasks:
        return "/v1/chat/completions", {
            "model": entry.name,
            "messages": [{"role": "user", "content": "Hello!"}],
        }
    if Task.EMBED in tasks:
        return "/v1/embeddings", {"model": entry.name, "input": "Hello!"}
    if Task.RANK in tasks:
        return "/v1/rerank", {"model": entry.name, "query": "Hello?", "documents": ["Hello!", "No."]}
    return None


def _curl(url: str, path: str, body: object, guarded: bool) -> str:
    """A command that sends the model a request, for the shell."""
    key = ' -H "Authorization: Bearer $ANTIPHON_API_KEY"' if guarded else ""
    header = "-H 'Content-Type: application/json'" + key
    if url.startswith("unix:"):
        url = f"--unix-socket {shlex.quote(url.removeprefix('unix:'))} http://localhost"
    return f"curl {url}{path} {header} -d {shlex.quote(msgspec.json.encode(body).decode())}"
