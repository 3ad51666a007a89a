"""Gets a page of the web, bounded in time, size and redirects, and only from where the guard lets it.

The size of a body is that of what it decodes to (`Content-Encoding`), which is counted while it is decoded.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import cached_property, partial
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol, TypeVar

import httpx2
from msgspec import Struct

from antiphon import __version__
from antiphon.core.encodings import PIECE, applied_encodings, decoded_parts, supported
from antiphon.core.errors import RequestError, ToolError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.tools.web.charset import decode
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.guard import Guard, GuardedTransport, LookUp, look_up, public

FETCH_SECONDS = 20.0
"""The time limit for a page, including all redirects."""

BODY_BYTES = 5 * 2**20
"""The most bytes of a page that are read, after decompression."""

REDIRECTS = 5
"""How often a page may lie elsewhere."""

URL_CHARS = 2000
"""The most characters of a URL that is opened."""

_SHOWN_ENCODINGS = 40
"""Characters of the names of encodings that an error shows."""
_HTML = {"", "text/html", "application/xhtml+xml"}
_TEXT = {"application/json", "application/xml"}
_HEADERS = {
    "User-Agent": f"antiphon/{__version__}",
    "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,text/*;q=0.8,application/json;q=0.8",
}


T = TypeVar("T")
Read = Callable[[httpx2.Response], Awaitable[T]]


class FetchedDocument(Struct, frozen=True):
    """The document at `url`, which is the one of the last redirect. `cut`: only its beginning was read."""

    url: str
    text: str
    html: bool
    cut: bool = False


class PageSource(Protocol):
    """A source of pages."""

    async def fetch(self, url: str, domains: Domains) -> FetchedDocument:
        """The document at `url`, of these domains only.

        Raises ToolError, with a message for the model.
        """
        ...

    async def close(self) -> None:
        """Free its resources."""
        ...


class Fetcher:
    """A `PageSource` for the web: a client that all answers share.

    It keeps no cookies, and uses no proxy, because a proxy would look up hosts itself.
    """

    def __init__(self, guard: Guard = public, look_up: LookUp = look_up) -> None:
        self._guard = guard
        self._look_up = look_up

    async def fetch(self, url: str, domains: Domains) -> FetchedDocument:
        """The document at `url`. Raises ToolError, with a message for the model."""
        return await self._get(url, domains, _HEADERS["Accept"], _read)

    async def download(self, url: str, domains: Domains, max_bytes: int) -> bytes:
        """The file at `url`, of any type, up to this number of bytes.

        Raises ToolError, with the code `LIMIT_EXCEEDED` if it has more.
        """
        return await self._get(url, domains, "*/*", partial(_read_file, max_bytes=max_bytes))

    async def _get(self, url: str, domains: Domains, accept: str, read: Read[T]) -> T:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self._follow(parse(url), domains, accept, read)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise ToolError(f"{_short(url)} did not answer in time. Try another page.") from error
        except httpx2.HTTPError as error:
            raise ToolError(f"{_short(url)} could not be reached. Try another page.") from error

    async def close(self) -> None:
        """Close the client, if it was used."""
        if "_client" in self.__dict__:
            await self._client.aclose()

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=GuardedTransport(self._guard, self._look_up),
            headers={**_HEADERS, "Accept-Encoding": accepted_encodings()},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=FETCH_SECONDS,
            trust_env=False,
        )

    async def _follow(self, url: httpx2.URL, domains: Domains, accept: str, read: Read[T]) -> T:
        for _ in range(REDIRECTS + 1):
            if not domains.admits(str(url)):
                raise ToolError(f"{url.host} is not among the domains that may be opened here.")
            async with self._client.stream("GET", url, headers={"Accept": accept}) as response:
                if not response.has_redirect_location:
                    return await read(response)
                url = parse(response.headers["Location"], url)
        raise ToolError(f"There are too many redirects. The last one was to {_short(str(url))}.")


class Downloader:
    """Gets files of these domains, for the server itself."""

    def __init__(self, domains: Domains, fetcher: Fetcher | None = None) -> None:
        self._domains = domains
        self._fetcher = fetcher or Fetcher()

    async def download(self, url: str, max_bytes: int) -> bytes:
        """The file at `url`, up to this number of bytes. Raises ToolError."""
        return await self._fetcher.download(url, self._domains, max_bytes)

    async def close(self) -> None:
        """Close all connections."""
        await self._fetcher.close()


def parse(text: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """The URL of a web page, relative to the page at `base`.

    Raises ToolError if it is invalid or not allowed.
    """
    try:
        url = (
            base.join(text) if base is not None else httpx2.URL(text if "://" in text else f"https://{text}")
        )
    except httpx2.InvalidURL as error:
        raise ToolError(f"'{_short(text)}' is not a URL.") from error
    if url.scheme not in ("http", "https") or not url.raw_host or len(str(url)) > URL_CHARS:
        raise ToolError(f"'{_short(text)}' is not the URL of a web page.")
    if url.userinfo:
        raise ToolError("URLs with a user name or password are not opened.")
    return url


def accepted_encodings() -> str:
    """The `Accept-Encoding` of requests whose answers `read_body` reads."""
    return ", ".join(supported())


class _Counter:
    """Counts what an encoding of a body decodes to; that of the last is cut before."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes + 2 * PIECE

    def count(self, piece: bytes) -> bytes:
        """The piece. Raises ToolError if there is too much."""
        self._left -= len(piece)
        if self._left < 0:
            raise ToolError("The answer cannot be decoded: it is compressed too many times.")
        return piece


async def read_body(response: httpx2.Response, max_bytes: int = BODY_BYTES) -> tuple[bytes, bool]:
    """The body of a response, decoded, up to this number of bytes, and whether there is more.

    Raises ToolError if it cannot be decoded.
    """
    body = bytearray()
    fields = [value for name, value in response.headers.raw if name.lower() == b"content-encoding"]
    try:
        async with aclosing(_raw(response)) as raw:
            async for piece in decoded_parts(raw, fields, lambda: _Counter(max_bytes).count):
                body += piece
                if len(body) > max_bytes:
                    return bytes(body[:max_bytes]), True
    except RequestError as error:
        encodings = ", ".join(applied_encodings(fields))[:_SHOWN_ENCODINGS]
        raise ToolError(f"The answer cannot be decoded; its Content-Encoding is {encodings}.") from error
    return bytes(body), False


async def _raw(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    async for piece in response.aiter_raw():
        yield piece


def _check_status(response: httpx2.Response) -> None:
    if not response.is_success:
        raise ToolError(f"{_short(str(response.url))} answered {_status(response.status_code)}.")


async def _read_file(response: httpx2.Response, max_bytes: int) -> bytes:
    _check_status(response)
    body, cut = await read_body(response, max_bytes)
    if cut:
        raise ToolError(f"{_short(str(response.url))} has more than {max_bytes} bytes.", code=LIMIT_EXCEEDED)
    return body


async def _read(response: httpx2.Response) -> FetchedDocument:
    url = str(response.url)
    _check_status(response)
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not _readable(kind):
        raise ToolError(
            f"{_short(url)} has the type {kind}. Only HTML and text can be read. Try another page."
        )
    body, cut = await read_body(response)
    return FetchedDocument(url, decode(body, response.charset_encoding), kind in _HTML, cut)


def _readable(kind: str) -> bool:
    return kind in _HTML or kind in _TEXT or kind.startswith("text/") or kind.endswith(("+json", "+xml"))


def _status(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else str(code)


def _short(url: str) -> str:
    return url if len(url) <= 200 else f"{url[:200]}…"
