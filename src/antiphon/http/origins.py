"""Which web pages may use a server without keys, by the `Host` and the `Origin` of each request.

A browser sends requests of any page to the user's machine and network, and says truthfully which page they
are from. Two rules keep the pages of others out:

- The Host of every request is one of this server's. Otherwise the name of the page could have been given the
  address of this server (DNS rebinding): for the browser the page would then be one of this server's own.
- A request that may change something, and the handshake of a WebSocket, is not from a page of another origin.
  A page that only reads needs no rule: the browser does not show it the answer (CORS).

With keys both rules are not needed, because no page knows one, and browsers add none by themselves. That a
request has one valid Host holds for every server (RFC 9112, 3.2).
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.types import Scope

from antiphon.config import Settings
from antiphon.core.errors import RequestError
from antiphon.http.request import header_of

ANY = "*"
KEPT = 1024
"""The number of different hosts whose names are kept."""
LONGEST_HOST = 261
"""The most characters of a host: 255 of a name in DNS, and a port."""
SHOWN = 100
"""The most characters of a header in a message."""
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OTHER_PAGES = frozenset({b"cross-site", b"same-site"})
"""The values of `Sec-Fetch-Site` of pages of other origins."""


class InvalidHostError(RequestError):
    """A request needs one header 'Host', with a name or an address, and perhaps a port."""


class ForeignHostError(RequestError):
    """The Host of the request is not one of this server's."""

    status = 403
    type = "permission_error"
    code = "host_not_allowed"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"This server has no keys, so it only takes requests to its own names, and '{name[:SHOWN]}' is "
            "none of them. If it is, start the server with --allow-host and the name, or with --api-key."
        )


class ForeignOriginError(RequestError):
    """The request comes from a web page of another origin."""

    status = 403
    type = "permission_error"
    code = "origin_not_allowed"

    def __init__(self, origin: bytes | None) -> None:
        page = "" if origin is None else f" from '{origin[:SHOWN].decode('latin-1')}'"
        super().__init__(
            f"This server has no keys, so web pages of other origins may not use it, and this request is "
            f"of one{page}. Start the server with --allow-origin and the origin, or with --api-key."
        )


class OriginRules:
    """The rules of a server, for every request and every WebSocket."""

    def __init__(self, settings: Settings, *, guarded: bool) -> None:
        """If the server is `guarded` by keys, only the form of the Host matters."""
        self._guarded = guarded
        self._named = frozenset(map(_normal, settings.allow_host)) - {ANY}
        self._any_host = ANY in settings.allow_host
        self._any_address = _is_unspecified(settings.host)
        self._own = self._named | {_normal(settings.host)}
        self._any_origin = ANY in settings.allow_origin
        self._origins = frozenset(origin.encode() for origin in settings.allow_origin)
        self._serves = lru_cache(KEPT)(self._is_own)

    def check(self, scope: Scope) -> None:
        """Raise RequestError for a request that is not allowed."""
        host = _host_of(scope)
        if self._guarded:
            return
        if host is not None and not self._serves(host, (scope.get("server") or ("",))[0]):
            raise ForeignHostError(_name_of(host) or "")
        if scope.get("method") not in _READING and self._is_foreign(scope, host):
            raise ForeignOriginError(header_of(scope, b"origin"))

    def _is_own(self, host: bytes, local: str) -> bool:
        """Whether this server is meant, whose end of the connection has the `local` address.

        A name may be an attacker's, an address may not: a page that was loaded from it is this server's own.
        But that of another machine is refused if nobody but this one is to use the server.
        """
        name = _name_of(host) or ""
        if self._any_host or name in self._own or name == "localhost" or name.endswith(".localhost"):
            return True
        address = _address(name)
        return address is not None and (
            self._any_address or address.is_loopback or address == _address(local)
        )

    def _is_foreign(self, scope: Scope, host: bytes | None) -> bool:
        """Whether a page of another origin has sent this. Only browsers send these headers."""
        origin = header_of(scope, b"origin")
        if origin is not None and (self._any_origin or origin in self._origins):
            return False
        if header_of(scope, b"sec-fetch-site") in _OTHER_PAGES:
            return True
        if origin is None:
            return False
        # The Host is one of this server's. A proxy may have changed it, or left out its port.
        authority = origin.partition(b"://")[2]
        return authority != host and _name_of(authority) not in self._named


def _host_of(scope: Scope) -> bytes | None:
    """The Host of a request; None if it has none, and may (HTTP/1.0, no browser). Raises RequestError."""
    hosts: list[bytes] = [value for name, value in scope["headers"] if name == b"host"]
    if not hosts and scope.get("http_version") == "1.0":
        return None
    if len(hosts) != 1 or _name_of(hosts[0]) is None:
        raise InvalidHostError
    return hosts[0]


def _name_of(host: bytes) -> str | None:
    """The name or address of a host, without its port; None if it is not valid."""
    return _parsed(host) if len(host) <= LONGEST_HOST else None  # longer ones are not kept


@lru_cache(KEPT)
def _parsed(host: bytes) -> str | None:
    match = _HOST.fullmatch(host.decode("latin-1"))
    return None if match is None else _normal(match["name"])


def _normal(name: str) -> str:
    """One way to write a name or an address."""
    name = name.strip("[]").lower().removesuffix(".")
    return str(_address(name) or name)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """The address, if it is one."""
    try:
        address = ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_unspecified(host: str) -> bool:
    """Whether this means all addresses of the machine."""
    address = _address(host)
    return not host or (address is not None and address.is_unspecified)
