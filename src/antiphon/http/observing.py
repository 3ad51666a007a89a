"""What is seen of every request: its id, its log line, its counts and its span.

The middleware is around everything else, so that a request that is refused, or runs into a bug, is seen like
any other. The line is written when the response is over, and says what came of it: a stream whose status is
200 may have failed in its middle.

`GET /metrics` gives the counts to Prometheus.
"""

import asyncio
import re
from collections.abc import Mapping
from time import perf_counter

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.app.app import App
from antiphon.app.chat import MAX_REQUEST_ID
from antiphon.app.observing import NO_TRACE, begin, end
from antiphon.core.accounts import Account
from antiphon.core.observation import Observation
from antiphon.decode.ids import random_id
from antiphon.http.errors import response_to
from antiphon.http.request import REQUEST_ID, app_of

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""What is asked for every few seconds, without end: logged with --log-level debug only."""
_REQUEST_ID = REQUEST_ID.encode()
_ANTHROPIC_REQUEST_ID = b"request-id"
"""The same id, where Anthropic's clients look for it."""
_MESSAGES = "/v1/messages"
UNROUTED = "none"
"""The route of a request that has none: what clients make up is no label."""
INTERNAL_ERROR = 500
MAX_TRACESTATE = 512
"""Characters that have to be passed on (W3C Trace Context)."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
"""Methods that are labels of their own: clients may make up others without end."""
OTHER_METHOD = "other"
WEBSOCKET = "WEBSOCKET"
"""Stands for the method of a turn on a WebSocket."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class ObservingMiddleware:
    """Observes every HTTP request, and answers what fails."""

    def __init__(self, asgi: ASGIApp, app: App) -> None:
        self._asgi = asgi
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the response the id of its request and what is left for its key, and note what came of it."""
        scope["app"] = app = self._app
        if scope["type"] != "http":
            await self._asgi(scope, receive, send)
            return
        observation = observe(app, Headers(scope=scope), scope["method"])
        status: int | None = None
        own = observation.request_id.encode()

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                told = _limits_of(observation.account, scope["path"])
                message["headers"] = [
                    *message["headers"],
                    (_REQUEST_ID, own),
                    (_ANTHROPIC_REQUEST_ID, own),
                    *told,
                ]
            await send(message)

        try:
            await self._asgi(scope, receive, identified)
        except Exception as error:
            if status is not None:  # the response has begun
                raise
            await response_to(error, scope)(scope, receive, identified)
            error.__traceback__ = None  # its frames refer to it, and to prompts
        finally:
            report(app, scope, status or INTERNAL_ERROR, observation)


def _limits_of(account: Account, path: str) -> list[tuple[bytes, bytes]]:
    """Headers that say how much of what the key may use is left."""
    if account.requests is account.tokens is None:
        return []
    headers = account.anthropic_headers() if path.startswith(_MESSAGES) else account.openai_headers()
    return [(name.encode(), value.encode()) for name, value in headers]


def observe(app: App, headers: Headers, name: str) -> Observation:
    """Observe what is done for a request with these headers; `name` is that of its span."""
    return begin(app, id_of(headers), name, _trace(headers))


def _trace(headers: Headers) -> Mapping[str, str]:
    """The headers of the trace that the request is in, if they are valid: they go on to other servers."""
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return NO_TRACE
    return {"traceparent": parent} | ({"tracestate": state} if 0 < len(state) <= MAX_TRACESTATE else {})


def report(app: App, scope: Scope, status: int, observation: Observation) -> None:
    """Write what came of a request, or a turn on a WebSocket."""
    method, path = scope.get("method", WEBSOCKET), scope["path"]
    route = getattr(scope.get("route"), "path", UNROUTED)
    counted = method if method in METHODS else OTHER_METHOD
    app.metrics.request(route, counted, status, perf_counter() - observation.started)
    known = {"method": method, "path": path, "status": status, "route": route}
    if observation.account.name:
        known["key"] = observation.account.name
    end(app, observation, "request", quiet=path in PROBES, **known)


def id_of(headers: Headers) -> str:
    """The id of a request: the client's, if a header can hold it, or a new one."""
    given = headers.get(REQUEST_ID, "")
    fits = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    return given if fits else random_id("req_", 24)


async def metrics(request: Request) -> Response:
    """GET /metrics."""
    app = app_of(request)
    accept = request.headers.get("accept", "")
    tasks = len(asyncio.all_tasks())
    text, media_type = await asyncio.to_thread(app.metrics.text, accept, app.models.loads, tasks)
    return Response(text, headers={"content-type": media_type})
