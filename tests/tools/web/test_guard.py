"""Nothing in the server's own network can be opened, by any name."""

import asyncio
import ssl
import threading
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ToolError
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.fetch import Fetcher
from antiphon.tools.web.guard import LOOK_UPS, Address, public
from tests.tools.processes import PATIENCE
from tests.tools.web.site import THREADS, loopback, web

ANY = Domains()

PRIVATE = [
    "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.9", "192.0.0.192", "192.88.99.1", "fd00:ec2::254",
    "192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2001:db8::1",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1",
    "::ffff:168.63.129.16", "64:ff9b::c000:c0", "64:ff9b:1::1", "2001:20::1", "3fff::1", "5f00::1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_of_the_internet_is_refused(address: str) -> None:
    assert not public(ip_address(address), 443)


def test_which_addresses_python_knows_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for type_ in (IPv4Address, IPv6Address):
        monkeypatch.setattr(type_, "is_global", True)
    assert [address for address in PRIVATE if public(ip_address(address), 443)] == []


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
    with pytest.raises(ToolError, match=r"not a public web server|no host|not a URL"):
        await fetcher.fetch(f"http://{host}:8080/", ANY)
    await fetcher.close()


async def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    fetcher = Fetcher(look_up=Names("1.1.1.1", "10.0.0.1"))
    with pytest.raises(ToolError, match="not a public web server"):
        await fetcher.fetch("http://rebound.example/", ANY)
    await fetcher.close()


async def test_the_address_that_was_checked_is_the_one_connected_to() -> None:
    """The name is looked up once: only this lookup knows `site.test`."""
    names = Names("127.0.0.1")
    async with web() as site:
        port = site.url.rpartition(":")[2]
        fetcher = Fetcher(loopback, names)
        document = await fetcher.fetch(f"http://site.test:{port}/", ANY)
        await fetcher.close()
    assert document.url == f"http://site.test:{port}/"
    assert site.asked[0].headers["host"] == f"site.test:{port}"
    assert names.looked_up == ["site.test"]


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    async with web() as site:
        fetcher = Fetcher(
            loopback, Names("127.0.0.2", "127.0.0.1")
        )  # the site listens on the second one only
        await fetcher.fetch(site.url.replace("127.0.0.1", "site.test"), ANY)
        await fetcher.close()
    assert site.paths() == ["/"]


async def test_tls_is_asked_for_by_name_and_its_certificate_checked() -> None:
    asked_for: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: asked_for.append(name)  # there is no certificate
    async with await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    ) as server:
        port = server.sockets[0].getsockname()[1]
        fetcher = Fetcher(loopback, Names("127.0.0.1"))
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


async def test_names_that_nobody_answers_for_keep_nobody_else_waiting() -> None:
    begun, answered = threading.Semaphore(0), threading.Event()

    def hang(host: str, port: int) -> list[Address]:
        begun.release()
        answered.wait()
        raise OSError

    fetcher = Fetcher(look_up=hang)
    waiting = [asyncio.create_task(fetcher.fetch(f"http://{n}.example/", ANY)) for n in range(2 * LOOK_UPS)]
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(THREADS):
                await asyncio.to_thread(begun.acquire)
            await fetcher.close()  # waits for no look-up
        assert not any(task.done() for task in waiting[:LOOK_UPS])
    finally:
        answered.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(error, ToolError | asyncio.CancelledError) for error in ended)


class Names:
    """Every name means these addresses. `looked_up` are the names that were asked for."""

    def __init__(self, *addresses: str) -> None:
        self.looked_up: list[str] = []
        self._addresses = [ip_address(address) for address in addresses]

    def __call__(self, host: str, port: int) -> list[Address]:
        self.looked_up.append(host)
        return self._addresses
