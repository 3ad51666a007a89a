"""Runs the server: sockets, signals, and the order of starting and stopping.

The socket listens before the model is loaded, so that /health can say "not
yet" instead of refusing the connection. The first Ctrl-C (or SIGTERM) stops
accepting and lets running answers end; a second one stops them, too.
"""

import asyncio
import gc
import os
import secrets
import shlex
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn

from antiphon.apis.responses.output.thoughts import RAW, RAW_OPEN_RESPONSES
from antiphon.apis.responses.sealing import Sealer
from antiphon.config import Settings
from antiphon.core.errors import AntiphonError, StoreError
from antiphon.engines.engine import Engine
from antiphon.http.app import build, connect
from antiphon.http.context import DAY, Context, Options
from antiphon.log import configure
from antiphon.run.service import Health, Service
from antiphon.store.open import default_path, open_store
from antiphon.store.store import Store
from antiphon.tools.shell import Shell
from antiphon.tools.tool import ServerTool

KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open. Longer than common clients keep theirs."""
GC_THRESHOLD = 50_000
"""Objects allocated beyond those freed before the collector looks for cycles. Python's default is 700."""
LAST_WORDS_SECONDS = 1
"""How long answers that were stopped may take to tell their clients so."""

_REASONING_FIELDS = {"both": ("reasoning_content", "reasoning")}
_THOUGHTS = {"openai": RAW, "open-responses": RAW_OPEN_RESPONSES}


def serve(settings: Settings) -> None:
    """Serve until Ctrl-C, which raises KeyboardInterrupt. Raises AntiphonError if the server cannot start."""
    configure(settings.log_level)
    template = _read(settings.chat_template) if settings.chat_template else None
    service = Service(
        _engine(settings),
        names=settings.model_name,
        dialect=settings.dialect,
        chat_template=template,
        date=settings.date,
        tools=_tools(settings),
    )
    context = connect(
        service,
        _open_store(settings),
        Sealer(_secrets(settings)),
        _options(settings),
        settings.jobs,
        lease=settings.lease_seconds,
    )
    app = build(context, settings.api_key)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
    )
    server = Server(config, context)
    with (
        server.taking_signals(),
        _listen(settings.host, settings.port) as listener,
        asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
    ):
        runner.run(_serve(server, listener, bool(settings.api_key)))
    if server.received is signal.SIGINT:
        raise KeyboardInterrupt


async def _serve(server: "Server", listener: socket.socket, guarded: bool) -> None:
    """Serve and load at the same time. `guarded`: requests need a key."""
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(_load(server.context))
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
        if not server.should_exit:
            _settle()
            url = _url(listener)
            curl = _curl(url, server.context.service.names[0], guarded)
            print(f"listening on {url}", f"try: {curl}", sep="\n", flush=True)
        await serving
    finally:
        server.should_exit = True
        loading.cancel()
        await asyncio.gather(serving, loading, return_exceptions=True)
        await server.context.worker.give_back()
        await server.context.service.stop()
        await server.hear_last_words()
        await server.context.service.close()
        await server.context.worker.stop()


async def _load(context: Context) -> None:
    """Load the model and open the store. Work on stored responses begins when both are there."""
    await context.service.start()
    await context.worker.start()


class Server(uvicorn.Server):
    """A uvicorn server that keeps the signals it takes, and says what they do."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self.context = context
        self.received: signal.Signals | None = None

    @contextmanager
    def taking_signals(self) -> Iterator[None]:
        """Take signals, from before the socket listens: Python may lose what its own handler raises."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are taken, and uvicorn would raise them again."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the first drains, the second stops."""
        self.context.service.health = Health.DRAINING
        self.context.worker.drain()
        self.received = signal.Signals(sig)
        self.force_exit = self.should_exit
        self.should_exit = True
        print(
            "stopping" if self.force_exit else "finishing running answers; Ctrl-C again to stop now",
            flush=True,
        )

    async def hear_last_words(self) -> None:
        """Let the requests whose answers were stopped end by themselves; cancel those that do not."""
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LAST_WORDS_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _settle() -> None:
    """Spare the garbage collector what lives as long as the server, and the short lives of tokens.

    Events, tokens and chunks hold no cycles; what does is a few objects per request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        message = f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port (0 picks one)."
        raise AntiphonError(message) from error


def _engine(settings: Settings) -> Engine:
    """The engine that the settings name. Engines are optional extras: imported when chosen."""
    if settings.engine == "scripted":
        from antiphon.engines.scripted import ScriptedEngine  # noqa: PLC0415

        assert settings.script is not None
        return ScriptedEngine(settings.script)
    from antiphon.engines.llama_cpp import LlamaCppEngine  # noqa: PLC0415
    from antiphon.engines.models import resolve  # noqa: PLC0415

    return LlamaCppEngine(
        resolve(settings.model),
        context=settings.context,
        parallel=settings.parallel,
        threads=settings.threads,
    )


def _tools(settings: Settings) -> Iterator[ServerTool]:
    """The tools that the settings name. What they are made with are optional extras: imported when chosen."""
    if settings.code_interpreter:
        with _extra("code-interpreter"):
            from antiphon.tools.code_interpreter import CodeInterpreter  # noqa: PLC0415
        yield CodeInterpreter()
    if settings.web_search is not None:
        with _extra("web-search"):
            from antiphon.tools.web.search import SearxngSearch  # noqa: PLC0415
            from antiphon.tools.web_search import WebSearch  # noqa: PLC0415
        yield WebSearch(SearxngSearch(settings.web_search))
    if settings.shell is not None:
        yield Shell(settings.shell)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Say which extra is needed for what is imported, if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise AntiphonError(f"--{name} needs an extra: `pip install 'antiphon[{name}]'`.") from error


def _options(settings: Settings) -> Options:
    return Options(
        max_body_bytes=settings.max_body_bytes,
        patience=settings.keep_alive,
        trust_templates=settings.trust_chat_templates,
        force_usage=settings.force_include_usage,
        reasoning_fields=_REASONING_FIELDS.get(settings.reasoning_field, (settings.reasoning_field,)),
        thoughts=_THOUGHTS[settings.reasoning_events],
        keep=settings.keep_days * DAY,
    )


def _open_store(settings: Settings) -> Callable[[], Awaitable[Store]]:
    """Opens the store that the settings name. If that fails, the server does not start, and says why."""

    async def opened() -> Store:
        try:
            return await open_store(settings.store)
        except (ValueError, StoreError) as error:
            why = str(error.__cause__ or error).rstrip(".")
            raise AntiphonError(f"Cannot open the store: {why}. Choose another with --store.") from error

    return opened


def _secrets(settings: Settings) -> tuple[str, ...]:
    """What seals for clients: what the settings name, or a secret made at the first start."""
    if settings.secret:
        return settings.secret
    if settings.store == "memory":
        return (secrets.token_urlsafe(32),)
    path = default_path().with_name("secret")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_secret(path)
        return (path.read_text(encoding="utf-8").strip(),)
    except OSError as error:
        message = f"Cannot keep a secret in {path}: {error.strerror}. Give one with --secret."
        raise AntiphonError(message) from error


def _make_secret(path: Path) -> None:
    """Write a secret at once and whole: of two servers that start together, the first wins."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent)  # readable for its owner only
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
    with suppress(FileExistsError):
        os.link(draft, path)
    os.unlink(draft)


def _read(template: Path) -> str:
    try:
        return template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AntiphonError(f"Cannot read the chat template {template}: {error}.") from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _curl(url: str, model: str, guarded: bool) -> str:
    """A command that asks the model something, for the shell."""
    body = msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
    key = ' -H "Authorization: Bearer $ANTIPHON_API_KEY"' if guarded else ""
    header = "-H 'Content-Type: application/json'" + key
    return f"curl {url}/v1/chat/completions {header} -d {shlex.quote(body.decode())}"
