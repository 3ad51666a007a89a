"""Gets a page of the web, bounded in time, size and redirects, and only from where the guard lets it."""

import asyncio
from functools import cached_property
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
from msgspec import Struct

from antiphon import __version__
from antiphon.core.errors import ToolError
from antiphon.tools.web.charset import decode
from antiphon.tools.web.guard import Guard, GuardedTransport, LookUp, look_up, public
from antiphon.tools.web.settings import Domains

FETCH_SECONDS = 20.0
"""How long a page may take, all redirects included."""

BODY_BYTES = 5 * 2**20
"""How much of a page is read, after decompression; of a longer one the beginning."""

REDIRECTS = 5
"""How often a page may lie elsewhere."""

URL_CHARS = 2000
"""The longest URL that is opened."""

_HTML = {"", "text/html", "application/xhtml+xml"}
_TEXT = {"application/json", "application/xml"}
_HEADERS = {
    "User-Agent": f"antiphon/{__version__}",
    "Accept": "text/html,application/xhtml+xml,text/plain;q=0.9,text/*;q=0.8,application/json;q=0.8",
}


class Document(Struct, frozen=True):
    """What was found at `url`, where the last redirect led. `cut`: there was more of it than is read."""

    url: str
    text: str
    html: bool
    cut: bool = False


class Fetcher:
    """A client that all answers share. It keeps no cookies, and uses no proxy: that would look up hosts."""

    def __init__(self, guard: Guard = public, look_up: LookUp = look_up) -> None:
        self._guard = guard
        self._look_up = look_up

    async def fetch(self, url: str, domains: Domains) -> Document:
        """The document at `url`. Raises ToolError, which says to the model what is wrong."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                return await self._follow(parse(url), domains)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise ToolError(f"{_short(url)} did not answer in time. Try another page.") from error
        except httpx2.HTTPError as error:
            raise ToolError(f"{_short(url)} could not be reached. Try another page.") from error

    async def close(self) -> None:
        """Close the client, if there ever was a use for it."""
        if "_client" in self.__dict__:
            await self._client.aclose()

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=GuardedTransport(self._guard, self._look_up),
            headers=_HEADERS,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=FETCH_SECONDS,
            trust_env=False,
        )

    async def _follow(self, url: httpx2.URL, domains: Domains) -> Document:
        for _ in range(REDIRECTS + 1):
            if not domains.admits(str(url)):
                raise ToolError(f"{url.host} is not among the domains that may be opened here.")
            async with self._client.stream("GET", url) as response:
                if not response.has_redirect_location:
                    return await _read(response)
                url = parse(response.headers["Location"], url)
        raise ToolError(f"There are too many redirects. The last one led to {_short(str(url))}.")


def parse(text: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """The URL of a web page, seen from the page at `base`. Raises ToolError if it is none, or not opened."""
    try:
        url = (
            base.join(text) if base is not None else httpx2.URL(text if "://" in text else f"https://{text}")
        )
    except httpx2.InvalidURL as error:
        raise ToolError(f"'{_short(text)}' is not a URL.") from error
    if url.scheme not in ("http", "https") or not url.raw_host or len(str(url)) > URL_CHARS:
        raise ToolError(f"'{_short(text)}' is not the URL of a web page.")
    if url.userinfo:
        raise ToolError("A URL with a user name or password is not opened.")
    return url


async def read_body(response: httpx2.Response) -> tuple[bytes, bool]:
    """What a response says, up to `BODY_BYTES`, and whether there is more."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > BODY_BYTES:
            return bytes(body[:BODY_BYTES]), True
    return bytes(body), False


async def _read(response: httpx2.Response) -> Document:
    url = str(response.url)
    if not response.is_success:
        raise ToolError(f"{_short(url)} answered {_status(response.status_code)}.")
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not _readable(kind):
        raise ToolError(
            f"{_short(url)} is {kind}, which cannot be read: only HTML and text can. Try another page."
        )
    body, cut = await read_body(response)
    return Document(url, decode(body, response.charset_encoding), kind in _HTML, cut)


def _readable(kind: str) -> bool:
    return kind in _HTML or kind in _TEXT or kind.startswith("text/") or kind.endswith(("+json", "+xml"))


def _status(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else str(code)


def _short(url: str) -> str:
    return url if len(url) <= 200 else f"{url[:200]}…"
