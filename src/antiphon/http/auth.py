"""API keys: who may send requests, and as whom.

With keys set, every path but /health, /ready and /version wants `Authorization: Bearer KEY`, or
`x-api-key: KEY`, as Anthropic's clients send it. The key itself goes no further than this
module: the request carries its identity, a digest, and what is stored for a request belongs to
that identity. What changes the server itself wants a key of its own.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.core.errors import AuthenticationError, RequestError
from antiphon.core.limits import CLIENT
from antiphon.http.errors import error_response

ANYONE = "anyone"
"""The identity of every request to a server without keys."""

POLICY_VIOLATION = 1008
"""The code that closes a WebSocket whose client may not use it (RFC 6455)."""

_ADMIN = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Paths for whoever runs the server."""

_OPEN = frozenset({"/health", "/ready", "/version"})


class NoAdminKeyError(RequestError):
    """Nobody may do this here, because the server runs without an admin key. Start it with --admin-key."""

    status = 403
    type = "permission_error"


class KeyMiddleware:
    """Lets requests with a known key through, and notes whose it is."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        self._app = app
        # Digests have one length: comparing them takes the same time whatever the client sent.
        self._digests = [_digest(key) for key in keys]
        self._admin_digests = [_digest(key) for key in admin_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request without a known key, if keys are wanted here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path, owner = scope["path"], ANYONE
        if path in _ADMIN and not self._admin_digests:
            await error_response(NoAdminKeyError(), path)(scope, receive, send)
            return
        digests = self._admin_digests if path in _ADMIN else () if path in _OPEN else self._digests
        found = _identity(scope, digests) if digests else owner
        if found is None:
            await _refuse(scope, receive, send)
            return
        owner = found
        scope.setdefault("state", {})["owner"] = owner
        CLIENT.set(owner if self._digests else (scope.get("client") or ("",))[0])
        await self._app(scope, receive, send)


def _identity(scope: Scope, digests: Sequence[bytes]) -> str | None:
    """The identity of a request with one of these keys; None for another."""
    owner = None
    for given in map(_digest, _keys(scope)):
        # No early exit: how long this takes must not show which key came close.
        matches = [hmac.compare_digest(digest, given) for digest in digests]
        if any(matches):
            owner = given.hex()[:32]
    return owner


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await error_response(AuthenticationError(), scope["path"])(scope, receive, send)
    else:  # a socket that is closed before it is accepted: the server answers 403
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})


def _keys(scope: Scope) -> Iterator[str]:
    """The keys that came with a request: some clients send two, of which one is a placeholder."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                yield key.strip()
        elif name == b"x-api-key":
            yield value.decode("latin-1")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
