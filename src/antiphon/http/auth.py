"""API keys: which requests are allowed, for which account, and how many. Every request passes through here.

If keys are configured, every path but /health, /ready, /version, the page at / and, if they are public, the
metrics requires `Authorization: Bearer KEY`, or the key in `x-api-key` or `api-key`, as Anthropic's and
Azure's clients send it. Only this module sees the key: the request carries its account, and stored objects
belong to the owner of that. Requests that change the server itself require an admin key, even without other
keys. Where there are no keys, the rules of `origins.py` keep the web pages of others out.
"""

from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.app.app import App
from antiphon.core.accounts import ANYONE, Account, AccountScope
from antiphon.core.errors import AuthenticationError, RequestError, ScopeError
from antiphon.core.limits import CLIENT
from antiphon.core.observation import observed
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.http.errors import error_response
from antiphon.http.observing import WEBSOCKET, observe, report
from antiphon.http.origins import OriginRules

POLICY_VIOLATION = 1008
"""The code that closes a WebSocket whose client may not use it (RFC 6455)."""
DENIAL = "websocket.http.response"
"""The extension of ASGI for a response in place of the handshake of a WebSocket."""

_OPEN = frozenset({"/health", "/ready", "/version", "/api/version", "/", "/docs", "/openapi.json"})
_METRICS = "/metrics"
_PAGE = "/page/"
"""The page asks the user for a key, and sends it with its requests."""
_ADMIN = frozenset(
    {
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        *("/v1/replicas", "/v1/replicas/drain", "/v1/replicas/resume"),
    }
)
_STORED = (
    "/v1/conversations",
    "/v1/files",
    "/v1/uploads",
    "/v1/vector_stores",
    "/v1/containers",
    "/v1/debug",
)
"""The prefixes of paths that only manage stored objects."""
_ANSWERS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/batches")
"""The beginning of paths where answers are made, and are found later."""
_MAKING = frozenset(
    {
        *_ANSWERS,
        "/v1/chat/completions/batch",
        "/v1/chat/completions/render",
        "/v1/messages/batches",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/responses/compact",
        "/v1/responses/input_tokens",
        "/v1/responses/render",
    }
)
"""Those that make something, by POST."""
_REFUSED = frozenset({"/api/push", "/api/create", "/api/copy"})
_BLOBS = "/api/blobs/"
"""What of Ollama's API is refused, whatever the key."""
_KEY_HEADERS = frozenset({b"x-api-key", b"api-key"})


class NoAdminKeyError(RequestError):
    """This request needs an admin key, and the server runs without one. Start it with --admin-key."""

    status = 403
    type = "permission_error"


class KeyMiddleware:
    """Admits requests with a valid key, and sets their account."""

    def __init__(self, asgi: ASGIApp, app: App) -> None:
        self._asgi = asgi
        self._app = app
        self._keys = app.keys
        self._open = _OPEN | {_METRICS} if app.settings.public_metrics else _OPEN
        self._rules = OriginRules(app.settings, guarded=app.keys.guarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request of a page that may not send it, or whose key does not allow it."""
        if scope["type"] == "lifespan":
            await self._asgi(scope, receive, send)
            return
        path, account, guarded = scope["path"], ANYONE, self._keys.guarded
        try:
            self._rules.check(scope)
            if path in _ADMIN or (guarded and not self._is_open(path)):
                account = await self._admitted(scope, path)
        except RequestError as error:
            await self._refuse(error, scope, receive, send)
            return
        scope.setdefault("state", {})["account"] = account
        # Slots are shared by client; without keys, clients are distinguished by their addresses.
        CLIENT.set(account.owner if guarded else (scope.get("client") or ("",))[0])
        await self._asgi(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(_PAGE)

    async def _admitted(self, scope: Scope, path: str) -> Account:
        """The account of a request, which may be made with its key. Raises RequestError."""
        needed = scope_of(scope.get("method", "POST"), path)
        if needed == "admin" and not self._keys.administered:
            raise NoAdminKeyError
        observed().account = account = self._account(scope)
        _check_scope(account, needed)
        if needed == "inference" and scope["type"] == "http":  # on a WebSocket, each turn counts
            if (record := STREAM_RECORD.get()) is not None and record.resumed:  # it was counted
                observed().account = account = account.going_on
                observed().reserved += account.taken_over(record.reserved)
            await account.secure(requests=1)
            account.admit()
        return account

    async def _refuse(self, error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the error. Of a WebSocket only its turns are observed otherwise."""
        if scope["type"] == "websocket":
            report(self._app, scope, error.status, observe(self._app, scope, WEBSOCKET))
        if scope["type"] == "http" or DENIAL in scope["extensions"]:
            await error_response(error, scope)(scope, receive, send)
        else:  # a socket that is closed before it is accepted: the server answers 403
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})

    def _account(self, scope: Scope) -> Account:
        """The account of a request. Raises AuthenticationError."""
        account = None
        for value in _values(scope):
            account = self._keys.find(value) or account
        if account is None:
            raise AuthenticationError
        if account.expired:
            raise AuthenticationError("This API key has expired. Ask the operator of the server for another.")
        return account


def scope_of(method: str, path: str) -> AccountScope | None:
    """The scope that a request needs; None if any key is enough."""
    if path in _ADMIN:
        return "admin"
    if path == _METRICS:
        return "metrics"
    if path.startswith(_STORED):
        return "stored"
    if path.startswith(_ANSWERS):
        makes = path in _MAKING or path.endswith("/steer")
        return "inference" if method == "POST" and makes else "stored"
    return "inference" if method == "POST" and path not in _REFUSED and not path.startswith(_BLOBS) else None


def _check_scope(account: Account, needed: AccountScope | None) -> None:
    """Raise ScopeError for an account without this scope."""
    if needed is not None and needed not in account.permissions.scopes:
        raise ScopeError(f"The key '{account.name}' does not have the scope '{needed}'. Use another key.")


def _values(scope: Scope) -> Iterator[str]:
    """The keys of a request: some clients send two, one of which is a placeholder."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                yield key.strip()
        elif name in _KEY_HEADERS:
            yield value.decode("latin-1")
