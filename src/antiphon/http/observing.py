"""Observes every request: its id, its log line, its metrics and its span.

The middleware is the outermost one, so that requests that are refused, or fail because of a bug, are
observed as well. The line is written when the response is over, and says how it ended: a stream with the
status 200 may have failed in the middle. `GET /metrics` returns the metrics to Prometheus.
"""

import asyncio
import re
from collections.abc import Mapping
from time import perf_counter

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.app.app import App
from antiphon.app.ids import random_id
from antiphon.app.metrics import CLIENT_CLOSED, ServerState, text_of
from antiphon.app.observing import NO_TRACE, begin, end
from antiphon.app.siblings import Call
from antiphon.core.errors import EngineNotReadyError
from antiphon.core.observation import Observation
from antiphon.http.errors import response_to
from antiphon.http.leaving import DEPARTURE
from antiphon.http.protocol import STREAM
from antiphon.http.request import REQUEST_ID, app_of, given_id, header_of
from antiphon.http.routes import ApiTable
from antiphon.processes.channel import METRICS
from antiphon.processes.sums import Snapshot
from antiphon.run.endings import ClientLeftError

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are requested every few seconds: logged with --log-level debug only."""
_ANTHROPIC_REQUEST_ID = b"request-id"
"""The same id, in the header that Anthropic's clients read."""
UNROUTED = "none"
"""The label for unknown paths, which clients can invent in any number."""
INTERNAL_ERROR = 500
LEFT = frozenset({"client_left", "client_stalled"})
"""How answers end whose client has disconnected: see `ClientLeftError` and `ClientStalledError`."""
MAX_TRACESTATE = 512
"""Characters that have to be passed on (W3C Trace Context)."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
"""Methods with labels of their own: clients can invent any number of others."""
OTHER_METHOD = "other"
WEBSOCKET = "WEBSOCKET"
"""The label for turns on a WebSocket, in place of the method."""

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class ObservingMiddleware:
    """Observes every HTTP request, and answers failures."""

    def __init__(self, asgi: ASGIApp, app: App, apis: ApiTable) -> None:
        self._asgi = asgi
        self._app = app
        self._apis = apis

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the request's id and the key's limits to the response, and observe how it ended."""
        scope["app"] = app = self._app
        scope["apis"] = self._apis
        if (path := scope.get("path", "")).endswith("/"):  # a redirect might leave TLS, or lose the body
            scope["path"] = path.rstrip("/") or "/"
        if scope["type"] != "http":
            await self._asgi(scope, receive, send)
            return
        observation = observe(app, scope, scope["method"])
        connection = scope.get("extensions", {}).get(STREAM) or scope.get(DEPARTURE)
        status: int | None = None

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                left = connection is not None and connection.disconnected
                status = _client_left(observation) if left else message["status"]
                own = observation.request_id.encode()
                headers = [*message["headers"], (REQUEST_ID, own), (_ANTHROPIC_REQUEST_ID, own)]
                account = observation.account
                if account.requests is not None or account.tokens is not None:
                    limits = self._apis.at(scope["path"]).limit_headers(account)
                    headers += [(name.encode(), value.encode()) for name, value in limits]
                message["headers"] = headers
            await send(message)

        try:
            await self._asgi(scope, receive, identified)
        except ClientDisconnect:  # before the request was complete: there is no client to answer
            status = _client_left(observation)
        except (Exception, asyncio.CancelledError) as error:
            if status is not None:  # the response has begun
                raise
            # A server that stops cancels requests that are late: see `HttpServer.finish_requests`.
            failure = error if isinstance(error, Exception) else EngineNotReadyError()
            await response_to(failure, scope)(scope, receive, identified)
            error.__traceback__ = None  # its frames refer to it, and to prompts
        finally:
            report(app, scope, status or _unsent(observation), observation)


def _client_left(observation: Observation) -> int:
    """The status of a request whose client disconnected before its answer was sent."""
    if observation.finish is None:
        observation.fail(ClientLeftError())
    return CLIENT_CLOSED


def _unsent(observation: Observation) -> int:
    """The status of a request that was not answered."""
    return CLIENT_CLOSED if observation.failure in LEFT else INTERNAL_ERROR


def observe(app: App, scope: Scope, name: str) -> Observation:
    """Observe a request, or a turn on a WebSocket; `name` is that of its span."""
    return begin(app, given_id(scope) or random_id("req_", 24), name, _trace(scope))


def _trace(scope: Scope) -> Mapping[str, str]:
    """The headers of the request's trace, if they are valid: they are passed on to other servers."""
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
    end(app, observation, "request", known, quiet=path in PROBES)


async def _snapshot(app: App, _: None) -> Snapshot:
    """The metrics of this process."""
    caches = await app.models.cache_figures()
    now = ServerState(app.models.loads, caches, app.permits, len(asyncio.all_tasks()))
    return await asyncio.to_thread(app.metrics.snapshot, now)


SNAPSHOTS = Call(METRICS, _snapshot, None, Snapshot)


async def metrics(request: Request) -> Response:
    """GET /metrics."""
    snapshots = await app_of(request).ask(SNAPSHOTS, None)
    text, media_type = await asyncio.to_thread(text_of, request.headers.get("accept", ""), snapshots)
    return Response(text, headers={"content-type": media_type})
