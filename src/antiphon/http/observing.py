"""What is seen of every request: its id, its log line, its counts and its span.

The middleware is around everything else, so that a request that is refused, or runs into a bug, is seen like
any other. The line is written when the response is over, and says how it ended: a stream whose status is
200 may have failed in its middle.

`GET /metrics` gives the counts to Prometheus.
"""

import asyncio
import re
from collections.abc import Mapping
from time import perf_counter

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.app.app import App
from antiphon.app.chat import MAX_REQUEST_ID
from antiphon.app.observing import NO_TRACE, begin, end
from antiphon.core.accounts import Account
from antiphon.core.observation import Observation
from antiphon.decode.ids import random_id
from antiphon.http.errors import response_to
from antiphon.http.request import REQUEST_ID, app_of, header_of
from antiphon.run.endings import ClientLeftError

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""What is asked for every few seconds, without end: logged with --log-level debug only."""
_ANTHROPIC_REQUEST_ID = b"request-id"
"""The same id, where Anthropic's clients look for it."""
_MESSAGES = "/v1/messages"
UNROUTED = "none"
"""The route of a request that has none: what clients make up is no label."""
INTERNAL_ERROR = 500
CLIENT_CLOSED = 499
"""The status that nobody gets any more; it is for the log."""
MAX_TRACESTATE = 512
"""Characters that have to be passed on (W3C Trace Context)."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
"""Methods that are labels of their own: clients may make up others without end."""
OTHER_METHOD = "other"
WEBSOCKET = "WEBSOCKET"
"""Stands for the method of a turn on a WebSocket."""

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class ObservingMiddleware:
    """Observes every HTTP request, and answers what fails."""

    def __init__(self, asgi: ASGIApp, app: App) -> None:
        self._asgi = asgi
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the response the id of its request and what is left for its key, and note how it ended."""
        scope["app"] = app = self._app
        if scope["type"] != "http":
            await self._asgi(scope, receive, send)
            return
        observation = observe(app, scope, scope["method"])
        status: int | None = None

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, own = message["status"], observation.request_id.encode()
                headers = [*message["headers"], (REQUEST_ID, own), (_ANTHROPIC_REQUEST_ID, own)]
                account = observation.account
                if account.requests is not None or account.tokens is not None:
                    headers += _limits_of(account, scope["path"])
                message["headers"] = headers
            await send(message)

        try:
            await self._asgi(scope, receive, identified)
        except ClientDisconnect:  # before its request was whole: there is nobody to be told
            observation.fail(ClientLeftError())
            status = CLIENT_CLOSED
        except Exception as error:
            if status is not None:  # the response has begun
                raise
            await response_to(error, scope)(scope, receive, identified)
            error.__traceback__ = None  # its frames refer to it, and to prompts
        finally:
            report(app, scope, status or INTERNAL_ERROR, observation)


def _limits_of(account: Account, path: str) -> list[tuple[bytes, bytes]]:
    """Headers that say how much of what the key may use is left."""
    headers = account.anthropic_headers() if path.startswith(_MESSAGES) else account.openai_headers()
    return [(name.encode(), value.encode()) for name, value in headers]


def observe(app: App, scope: Scope, name: str) -> Observation:
    """Observe what is done for a request, or a turn on a WebSocket; `name` is that of its span."""
    return begin(app, id_of(header_of(scope, REQUEST_ID)), name, _trace(scope))


def _trace(scope: Scope) -> Mapping[str, str]:
    """The headers of the trace that the request is in, if they are valid: they go on to other servers."""
    parent = header_of(scope, b"traceparent")
    if parent is None or not _TRACEPARENT.fullmatch(parent):
        return NO_TRACE
    trace, state = {"traceparent": parent.decode()}, header_of(scope, b"tracestate")
    if state and len(state) <= MAX_TRACESTATE:
        trace["tracestate"] = state.decode("latin-1")
    return trace


def report(app: App, scope: Scope, status: int, observation: Observation) -> None:
    """Write how a request ended, or a turn on a WebSocket."""
    method, path = scope.get("method", WEBSOCKET), scope["path"]
    route = getattr(scope.get("route"), "path", UNROUTED)
    counted = method if method in METHODS else OTHER_METHOD
    app.metrics.request(route, counted, status, perf_counter() - observation.started)
    known = {"method": method, "path": path, "status": status, "route": route}
    if observation.account.name:
        known["key"] = observation.account.name
    end(app, observation, "request", quiet=path in PROBES, **known)


def id_of(given: bytes | None) -> str:
    """The id of a request: the one that its client has `given` it, if a header can hold it, or a new one."""
    if given and len(given) <= MAX_REQUEST_ID and given.isascii() and (text := given.decode()).isprintable():
        return text
    return random_id("req_", 24)


async def metrics(request: Request) -> Response:
    """GET /metrics."""
    app = app_of(request)
    accept = request.headers.get("accept", "")
    tasks = len(asyncio.all_tasks())
    text, media_type = await asyncio.to_thread(app.metrics.text, accept, app.models.loads, tasks)
    return Response(text, headers={"content-type": media_type})
