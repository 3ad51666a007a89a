"""Runs the server: sockets, signals, and the order of starting and stopping.

The socket listens before the model is loaded, so that /health can say "not
yet" instead of refusing the connection. The first Ctrl-C stops accepting and
lets running answers end; a second one stops at once.
"""

import asyncio
import socket
from types import FrameType

import uvicorn

from antiphon.config import Settings
from antiphon.core.errors import AntiphonError
from antiphon.engines.engine import Engine
from antiphon.http.app import build
from antiphon.log import configure
from antiphon.run.service import Health, Service

KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open. Longer than common clients keep theirs."""


def serve(settings: Settings) -> None:
    """Serve until Ctrl-C. Raises AntiphonError if the server cannot start."""
    configure(settings.log_level)
    listener = _listen(settings.host, settings.port)
    template = settings.chat_template.read_text() if settings.chat_template else None
    service = Service(
        _engine(settings), names=settings.model_name, dialect=settings.dialect, chat_template=template
    )
    app = build(service, keys=settings.api_key, max_body_bytes=settings.max_body_bytes)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        server_header=False,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner, listener:
        runner.run(_serve(Server(config, service), listener))


async def _serve(server: "Server", listener: socket.socket) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(server.service.start())
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            _announce(listener, server.service)
        await serving
    finally:
        server.should_exit = True
        loading.cancel()
        await asyncio.gather(serving, loading, return_exceptions=True)
        await server.service.stop()


class Server(uvicorn.Server):
    """A uvicorn server that says what Ctrl-C does."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the first drains, the second stops."""
        self.service.health = Health.DRAINING
        print("finishing running answers; Ctrl-C again to stop now" if not self.should_exit else "stopping")
        super().handle_exit(sig, frame)


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

    return LlamaCppEngine(resolve(settings.model), context=settings.context, parallel=settings.parallel)


def _announce(listener: socket.socket, service: Service) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    body = f'{{"model": "{service.names[0]}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    print(f"listening on {url}", flush=True)
    print(f"try: curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'", flush=True)
