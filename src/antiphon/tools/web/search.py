"""Where searches are answered: a search engine of the operator's, behind one protocol."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

import httpx2
import msgspec
import structlog
from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.tools.web.fetch import read_body
from antiphon.tools.web.page import Result
from antiphon.tools.web.settings import Domains, host_of

SEARCH_SECONDS = 20.0
"""How long a search may take."""

CHECK_SECONDS = 5.0
"""How long the start of the server waits to hear whether the search engine answers."""
_CHECK = "Is that its address, and has search.formats in its settings.yml json?"

_SITES = 8
"""Domains that a query names. Search engines understand no more; all hold for the results."""

log = structlog.get_logger()


class SearchProvider(Protocol):
    """A search engine."""

    async def search(self, query: str, count: int, domains: Domains) -> Sequence[Result]:
        """The best results, `count` at most, no URL twice, of these domains only. Raises ToolError."""
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...


class _Answer(Struct):
    results: list[dict[str, Any]] = []


class SearxngSearch:
    """A SearXNG server at `base_url`, whose `search.formats` has `json`.

    The address is the operator's, and may be one of a private network. Raises ToolError if it is no URL.
    """

    def __init__(self, base_url: str) -> None:
        if not host_of(base_url):
            raise ToolError(
                f"'{base_url}' is not the URL of a search engine. Give one like http://127.0.0.1:8888."
            )
        self._url = base_url.rstrip("/") + "/search"

    async def check(self) -> None:
        """Search once, when the server starts: the log tells of a search engine that does not answer."""
        with suppress(ToolError, TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self.search("test", 1, Domains())
                return
        log.warning("--web-search does not work yet", hint=_CHECK)

    async def search(self, query: str, count: int, domains: Domains) -> Sequence[Result]:
        """See `SearchProvider`."""
        try:
            body = await self._ask(_narrowed(query, domains))
            answer = msgspec.json.decode(body, type=_Answer)
        except (TimeoutError, httpx2.HTTPError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("search failed", error=_why(error))
            raise ToolError(
                "The search engine does not answer. Try again, or open a page by its URL."
            ) from error
        found = {result.url: result for result in map(_result, answer.results) if domains.admits(result.url)}
        return list(found.values())[:count]

    async def close(self) -> None:
        """See `SearchProvider`."""
        if "_client" in self.__dict__:
            await self._client.aclose()

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=SEARCH_SECONDS, trust_env=False)

    async def _ask(self, query: str) -> bytes:
        parameters = {"q": query, "format": "json"}
        async with (
            asyncio.timeout(SEARCH_SECONDS),
            self._client.stream("GET", self._url, params=parameters) as answer,
        ):
            answer.raise_for_status()
            body, _ = await read_body(answer)
            return body


def _why(error: Exception) -> str:
    """What went wrong, without the URL: it has the query in it, and may have a password."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the search engine answered with status {error.response.status_code}"
    return str(error) or type(error).__name__


def _narrowed(query: str, domains: Domains) -> str:
    """The query, with the domains named in the way that most search engines understand."""
    sites = " OR ".join(f"site:{domain}" for domain in domains.allowed)
    wanted = [f"({sites})"] if 1 <= len(domains.allowed) <= _SITES else []
    return " ".join([query, *wanted, *(f"-site:{domain}" for domain in domains.blocked[:_SITES])])


def _result(given: dict[str, Any]) -> Result:
    title, url, content = (str(given.get(name) or "") for name in ("title", "url", "content"))
    return Result(title, url, content)
