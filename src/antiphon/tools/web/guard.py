"""Keeps what a model opens out of the server's own network.

A host's addresses are looked up once, every one is shown to a `Guard`, and the
connection goes to an address that passed: a name cannot mean one thing when it
is checked and another when it is used. TLS still asks for the host by its name.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx2

from antiphon.core.errors import ToolError

Address = IPv4Address | IPv6Address
Guard = Callable[[Address, int], bool]
"""Whether this port of this address may be connected to."""

WEB_PORTS = frozenset({80, 443, 8080, 8443})
"""Where public web servers listen. Elsewhere a page would be a way to talk to other services."""

CONNECTIONS = 64
"""Connections that are open at a time, of all answers together."""

_ADDRESSES_TRIED = 3
_CONNECT_SECONDS = 5.0
_PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")


def public(address: Address, port: int) -> bool:
    """Whether anybody on the internet could connect to it."""
    inner = _embedded(address)
    if inner is not None:
        return public(inner, port)
    special = (
        address.is_private,
        address.is_loopback,
        address.is_link_local,
        address.is_multicast,
        address.is_reserved,
        address.is_unspecified,
        isinstance(address, IPv6Address) and address.is_site_local,
    )
    return port in WEB_PORTS and address.is_global and not any(special)


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, by mapping or through a tunnel."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests only to hosts whose addresses all pass the guard. Raises ToolError for others.

    Connections are not kept: by address alone, one that was made for a host could serve another.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first address that answers."""
        addresses = await self._checked(request.url)
        for address in addresses[:-1]:
            try:
                return await self._inner.handle_async_request(_sent_to(address, request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # the next address may answer
        return await self._inner.handle_async_request(_sent_to(addresses[-1], request))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _checked(self, url: httpx2.URL) -> Sequence[Address]:
        host, port = url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
        addresses = await _resolve(host, port)
        if not all(self._guard(address, port) for address in addresses):
            raise ToolError(f"{url.host} may not be opened: it is no public web server.")
        return addresses[:_ADDRESSES_TRIED]


async def _resolve(host: str, port: int) -> Sequence[Address]:
    """All addresses of a host, the preferred ones first. Raises ToolError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"There is no host {host}. Check the URL.") from error
    return [ip_address(sockaddr[0]) for *_, sockaddr in found]


def _sent_to(address: Address, request: httpx2.Request) -> httpx2.Request:
    """The same request, to this address. Its `Host` header stays, and TLS is told the host's name."""
    timeout = request.extensions["timeout"] | {"connect": _CONNECT_SECONDS}
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=str(address)),
        headers=request.headers,
        stream=request.stream,
        extensions={
            **request.extensions,
            "timeout": timeout,
            "sni_hostname": request.url.raw_host.decode("ascii"),
        },
    )
