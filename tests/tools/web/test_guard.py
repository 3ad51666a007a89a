"""Nothing of the server's own network can be opened, by whatever name."""

import asyncio
import ssl
from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ToolError
from antiphon.tools.web import guard
from antiphon.tools.web.fetch import Fetcher
from antiphon.tools.web.guard import public
from antiphon.tools.web.settings import Domains
from tests.tools.web.site import loopback, web

ANY = Domains()

PRIVATE = [
    "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
    "192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2001:db8::1",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_of_the_internet_is_refused(address: str) -> None:
    assert not public(ip_address(address), 443)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_servers_are_let_through_on_the_ports_of_the_web_only(address: str) -> None:
    assert public(ip_address(address), 443)
    assert public(ip_address(address), 8080)
    assert not public(ip_address(address), 22)


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "64:ff9b::", "2002::"]))
def test_no_way_of_writing_an_address_opens_it(address: IPv4Address, prefix: str) -> None:
    shift = 80 if prefix == "2002::" else 0
    written = ip_address(int(ip_address(prefix)) + (int(address) << shift))
    assert public(written, 80) == public(address, 80)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:7f00:1]",
        "0",
    ],
)
async def test_loopback_is_not_opened_however_it_is_written(host: str) -> None:
    fetcher = Fetcher()
    with pytest.raises(ToolError, match=r"no public web server|no host|not a URL"):
        await fetcher.fetch(f"http://{host}:8080/", ANY)
    await fetcher.close()


async def test_one_private_address_among_public_ones_is_enough_to_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, "1.1.1.1", "10.0.0.1")
    fetcher = Fetcher()
    with pytest.raises(ToolError, match="no public web server"):
        await fetcher.fetch("http://rebound.example/", ANY)
    await fetcher.close()


async def test_the_address_that_was_checked_is_the_one_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked up once: nobody else knows `site.test`."""
    looked_up = resolving(monkeypatch, "127.0.0.1")
    async with web() as site:
        port = site.url.rpartition(":")[2]
        fetcher = Fetcher(loopback)
        document = await fetcher.fetch(f"http://site.test:{port}/", ANY)
        await fetcher.close()
    assert document.url == f"http://site.test:{port}/"
    assert site.asked[0].headers["host"] == f"site.test:{port}"
    assert looked_up == ["site.test"]


async def test_the_next_address_is_tried_if_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "127.0.0.2", "127.0.0.1")  # the site listens on the second one only
    async with web() as site:
        fetcher = Fetcher(loopback)
        await fetcher.fetch(site.url.replace("127.0.0.1", "site.test"), ANY)
        await fetcher.close()
    assert site.paths() == ["/"]


async def test_tls_is_asked_for_by_name_and_its_certificate_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "127.0.0.1")
    asked_for: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: asked_for.append(name)  # there is no certificate
    async with await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    ) as server:
        port = server.sockets[0].getsockname()[1]
        fetcher = Fetcher(loopback)
        with pytest.raises(ToolError, match="could not be reached"):
            await fetcher.fetch(f"https://site.test:{port}/", ANY)
        await fetcher.close()
    assert asked_for == ["site.test"]


async def test_a_host_that_does_not_exist_is_said_to_be_none() -> None:
    fetcher = Fetcher()
    for host in ("no-such-host.invalid", "a..b", "x" * 70 + ".com"):
        with pytest.raises(ToolError, match="There is no host"):
            await fetcher.fetch(f"https://{host}/", ANY)
    await fetcher.close()


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Every name means these addresses. Returns the names that are looked up."""
    names: list[str] = []

    async def resolve(host: str, port: int) -> list[guard.Address]:
        names.append(host)
        return [ip_address(address) for address in addresses]

    monkeypatch.setattr(guard, "_resolve", resolve)
    return names
