"""What is used of uvicorn that its documentation does not promise.

pyproject.toml bounds its version. Whoever moves the bound runs this test: it names each part that is no longer there,
or is called differently, and the file that uses it.
"""

import ast
import asyncio
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from antiphon.http.protocol import Cycle, SocketProtocol, StreamProtocol
from antiphon.http.server import HttpServer

SOURCE = Path(__file__).parents[2] / "src" / "antiphon"
PROTOCOL, SERVER, APP = (
    "src/antiphon/http/protocol.py",
    "src/antiphon/http/server.py",
    "src/antiphon/http/app.py",
)

IMPORTS: Mapping[tuple[str, str], str] = {
    ("uvicorn", "Config"): SERVER,
    ("uvicorn", "Server"): SERVER,
    ("uvicorn.config", "Config"): PROTOCOL,
    ("uvicorn.middleware.proxy_headers", "ProxyHeadersMiddleware"): APP,
    ("uvicorn.protocols.http.flow_control", "HIGH_WATER_LIMIT"): PROTOCOL,
    ("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol"): PROTOCOL,
    ("uvicorn.protocols.http.httptools_impl", "RequestResponseCycle"): PROTOCOL,
    ("uvicorn.protocols.http.httptools_impl", "STATUS_LINE"): PROTOCOL,
    ("uvicorn.protocols.utils", "ClientDisconnected"): PROTOCOL,
    ("uvicorn.protocols.websockets.websockets_sansio_impl", "WebSocketsSansIOProtocol"): PROTOCOL,
    ("uvicorn.server", "ServerState"): PROTOCOL,
}
"""What is imported of uvicorn, and the file that does it."""

METHODS: Mapping[str, Mapping[type, Mapping[str, str]]] = {
    PROTOCOL: {
        HttpToolsProtocol: {
            "__init__": "self config server_state app_state _loop",
            "connection_made": "self transport",
            "connection_lost": "self exc",
            "data_received": "self data",
            "handle_websocket_upgrade": "self",
            "on_body": "self body",
            "on_header": "self name value",
            "on_headers_complete": "self",
            "on_message_begin": "self",
            "on_message_complete": "self",
            "on_response_complete": "self",
            "on_url": "self url",
            "pause_writing": "self",
            "resume_writing": "self",
            "send_400_response": "self msg",
            "shutdown": "self",
            "_should_upgrade": "self",
            "_start_asgi_task": "self cycle app",
        },
        RequestResponseCycle: {
            "receive": "self",
            "run_asgi": "self app",
            "send": "self message",
        },
        WebSocketsSansIOProtocol: {
            "connection_made": "self transport",
            "connection_lost": "self exc",
            "data_received": "self data",
            "handle_cont": "self event",
            "handle_parser_exception": "self",
            "handle_ping": "self",
            "receive": "self",
            "run_asgi": "self",
            "send": "self message",
            "send_500_response": "self",
            "shutdown": "self",
        },
    },
    SERVER: {
        uvicorn.Config: {"get_loop_factory": "self"},
        uvicorn.Server: {
            "__init__": "self config",
            "capture_signals": "self",
            "handle_exit": "self sig frame",
            "main_loop": "self",
            "serve": "self sockets",
            "shutdown": "self sockets",
        },
    },
}
"""The methods that are called or replaced, with their parameters, by the file that does it."""

ATTRIBUTES: Mapping[str, Mapping[type, str]] = {
    PROTOCOL: {
        HttpToolsProtocol: "app client config cycle expect_100_continue flow headers loop parser pipeline scheme scope server "
        "server_state transport",
        WebSocketsSansIOProtocol: "app client close_sent close_timer conn frames handshake_complete initial_response logger queue "
        "scope transport writable",
        ServerState: "default_headers total_requests",
        uvicorn.Config: "encoded_headers",
    },
    SERVER: {
        ServerState: "connections tasks",
        uvicorn.Config: "is_ssl",
        uvicorn.Server: "config force_exit server_state should_exit",
    },
}
"""What is read or set of their objects."""

SET_LATER: Mapping[type, str] = {WebSocketsSansIOProtocol: "scope", uvicorn.Config: "encoded_headers"}
"""What the objects have only once they are in use: uvicorn's source has to name it."""


ANYTHING = "args kwargs"
"""The parameters of a method that another library has replaced, as sse_starlette does with `handle_exit`."""


def made(kind: type) -> Any:
    """An object of uvicorn, as a server makes it."""
    config = uvicorn.Config(lambda: None, log_config=None, lifespan="off")
    match kind:
        case _ if kind is ServerState:
            return ServerState()
        case _ if kind is uvicorn.Config:
            return config
        case _ if kind is uvicorn.Server:
            return uvicorn.Server(config)
        case _ if kind is RequestResponseCycle:
            return kind(*[None] * (len(signature(kind).parameters)))
        case _:
            return kind(config, ServerState(), {}, asyncio.get_running_loop())


def changes() -> list[str]:
    """A sentence for each part of uvicorn that is not as it is used."""
    parts = (*_imports(), *_methods(), *_attributes())
    return [f"uvicorn {uvicorn.__version__} {change}" for change in parts]


def _imports() -> Iterator[str]:
    for (module, name), file in IMPORTS.items():
        if not hasattr(import_module(module), name):
            yield f"has no {module}.{name}, which {file} imports"


def _methods() -> Iterator[str]:
    rows = [(file, kind, methods) for file, classes in METHODS.items() for kind, methods in classes.items()]
    for file, kind, methods in rows:
        for name, used in methods.items():
            method = vars(kind).get(name)
            if method is None:
                yield f"has no {kind.__name__}.{name}, which {file} calls or replaces"
            elif " ".join(signature(method).parameters) not in (used, ANYTHING):
                yield f"has {kind.__name__}.{name}{signature(method)}, which {file} uses as ({used})"


def _attributes() -> Iterator[str]:
    rows = [(file, kind, used) for file, names in ATTRIBUTES.items() for kind, used in names.items()]
    for file, kind, used in rows:
        there = {*dir(made(kind)), *_named(kind, SET_LATER.get(kind, ""))}
        for name in sorted({*used.split()} - there):
            yield f"has no attribute {kind.__name__}.{name}, which {file} uses"


def _named(kind: type, names: str) -> Iterable[str]:
    tree = ast.parse(Path(import_module(kind.__module__).__file__ or "").read_text())
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return stored & {*names.split()}


async def test_uvicorn_is_as_it_is_used() -> None:
    assert changes() == []


async def test_what_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of change is said in one sentence, with the file that it is about."""
    release = f"uvicorn {uvicorn.__version__}"
    usual = HttpToolsProtocol.__init__

    def without_pipeline(
        self: HttpToolsProtocol, config: Any, server_state: Any, app_state: Any, _loop: Any = None
    ) -> None:
        usual(self, config, server_state, app_state, _loop)
        del self.pipeline

    with monkeypatch.context() as moved:
        moved.delattr("uvicorn.protocols.http.flow_control.HIGH_WATER_LIMIT")
        moved.delattr(HttpToolsProtocol, "send_400_response")
        moved.setattr(WebSocketsSansIOProtocol, "handle_ping", lambda self, event: None)
        moved.setattr(HttpToolsProtocol, "__init__", without_pipeline)
        said = changes()
    assert said == [
        f"{release} has no uvicorn.protocols.http.flow_control.HIGH_WATER_LIMIT, which {PROTOCOL} imports",
        f"{release} has no HttpToolsProtocol.send_400_response, which {PROTOCOL} calls or replaces",
        f"{release} has WebSocketsSansIOProtocol.handle_ping(self, event), which {PROTOCOL} uses as (self)",
        f"{release} has no attribute HttpToolsProtocol.pipeline, which {PROTOCOL} uses",
    ]


def test_what_is_imported_has_a_row() -> None:
    imported = {
        (node.module, alias.name): str(path.relative_to(SOURCE.parents[1]))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "uvicorn"
        for alias in node.names
    }
    missing = [
        f"add {row}: {file} to IMPORTS in {__file__}" for row, file in imported.items() if row not in IMPORTS
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("ours", "theirs", "file"),
    [
        (StreamProtocol, HttpToolsProtocol, PROTOCOL),
        (Cycle, RequestResponseCycle, PROTOCOL),
        (SocketProtocol, WebSocketsSansIOProtocol, PROTOCOL),
        (HttpServer, uvicorn.Server, SERVER),
    ],
)
def test_what_is_replaced_has_a_row(ours: type, theirs: type, file: str) -> None:
    replaced = {name for name in vars(ours).keys() & vars(theirs).keys() if callable(getattr(theirs, name))}
    missing = replaced - {*METHODS[file][theirs], "__init__"}
    assert missing == set(), f"add these methods to METHODS[{file!r}][{theirs.__name__}] in {__file__}"
