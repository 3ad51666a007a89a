"""Prevents models from opening pages in the server's own network.

A host's addresses are looked up once, every one is checked by a `Guard`, and the connection goes to an
address that passed: so a name cannot have one address for the check and another one for the connection. TLS
still verifies the name of the host.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpx2

from antiphon.core.errors import ToolError

Address = IPv4Address | IPv6Address
Guard = Callable[[Address, int], bool]
"""Whether this port of this address may be connected to."""

LookUp = Callable[[str, int], Sequence[Address]]
"""Returns all addresses of a host, for a port, the preferred ones first. It may block. Raises OSError."""

WEB_PORTS = frozenset({80, 443, 8080, 8443})
"""The ports of public web servers. Other ports could be used to reach other services."""

CONNECTIONS = 64
"""Connections that are open at a time, of all answers together."""

LOOK_UPS = 32
"""Hosts that are looked up at a time, of all answers together."""

_ADDRESSES_TRIED = 3
_CONNECT_SECONDS = 5.0
_PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")

_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        # The registries of special addresses (RFC 6890): Python's lists depend on its version.
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; includes the metadata service of Alibaba's cloud
        "127.0.0.0/8",  # this machine
        "169.254.0.0/16",  # this link; in it the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # the IETF's protocols; in it the metadata of Oracle's cloud
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays from IPv4 to IPv6: their destinations are not checked
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # measurements between networks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # groups
        "240.0.0.0/4",  # reserved; broadcasts
        "2001::/23",  # the IETF's protocols; tunnels
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
        # All but 2000::/3, the only part of IPv6 that is assigned to the internet.
        "::/3",  # this machine; addresses of IPv4, and of networks that translate them
        "4000::/2",  # reserved; segments of a route
        "8000::/1",  # private, this link, groups; in it the metadata of Amazon's cloud
        # Public by its number, and all the same within a cloud only.
        "168.63.129.16/32",  # the host of a machine in Microsoft's cloud
    )
)


def public(address: Address, port: int) -> bool:
    """Whether anybody on the internet could connect to it."""
    inner = _embedded(address)
    if inner is not None:
        return public(inner, port)
    special = any(address in network for network in _NOT_PUBLIC)
    return port in WEB_PORTS and address.is_global and not special


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, by mapping or through a tunnel."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def look_up(host: str, port: int) -> Sequence[Address]:
    """As the machine's resolver has it."""
    return [ip_address(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests only to hosts whose addresses all pass the guard. Raises ToolError for others.

    Connections are not kept: they are identified by address only, and one that was made for a host could be
    used for another. Look-ups have their own threads: a name server that does not answer delays only other
    look-ups.
    """

    def __init__(self, guard: Guard, look_up: LookUp) -> None:
        self._guard = guard
        self._look_up = look_up
        self._looking_up = ThreadPoolExecutor(LOOK_UPS, "look-up")
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
        """Close all connections. Running look-ups cannot be cancelled."""
        self._looking_up.shutdown(wait=False, cancel_futures=True)
        await self._inner.aclose()

    async def _checked(self, url: httpx2.URL) -> Sequence[Address]:
        host, port = url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
        addresses = await self._addresses(host, port)
        if not all(self._guard(address, port) for address in addresses):
            raise ToolError(f"{url.host} may not be opened: it is not a public web server.")
        return addresses[:_ADDRESSES_TRIED]

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        looking_up = asyncio.get_running_loop().run_in_executor(self._looking_up, self._look_up, host, port)
        try:
            return await looking_up
        except (OSError, UnicodeError) as error:
            raise ToolError(f"There is no host {host}. Check the URL.") from error


def _sent_to(address: Address, request: httpx2.Request) -> httpx2.Request:
    """The same request, to this address. Its `Host` header stays, and TLS verifies the host's name."""
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
