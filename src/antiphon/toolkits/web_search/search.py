"""Search engines that the operator configures, behind one protocol.

To add a search engine: a subclass of `HttpSearch`, in `WITH_KEY` if it has one address and needs a key;
`tests/toolkits/web_search/test_search.py`, with an answer from its documentation.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from html import unescape
from typing import Any, Protocol

import httpx2
import msgspec
import structlog
from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.core.untrusted_json import decode_untrusted
from antiphon.toolkits.web_search.page import SearchHit
from antiphon.tools.web.domains import Domains, host_of
from antiphon.tools.web.fetch import accepted_encodings, read_body

SEARCH_SECONDS = 20.0
"""The time limit of a search."""

ANSWER_BYTES = 2**20
"""The most bytes of the answer of a search engine, after decompression."""

CHECK_SECONDS = 5.0
"""How long the start of the server waits for the search engine."""

BRAVE_CHARS = 400
BRAVE_RESULTS = 20
TAVILY_RESULTS = 20
"""The most results of these engines."""

_TAG = re.compile(r"</?[a-z]{1,10}[^<>]{0,100}>")
_SITES = 8
"""Domains that a query names. Search engines understand no more; all hold for the results."""

log = structlog.get_logger()


class SearchProvider(Protocol):
    """A search engine."""

    async def search(self, query: str, count: int, domains: Domains) -> Sequence[SearchHit]:
        """The best results, `count` at most, no URL twice, of these domains only. Raises ToolError."""
        ...

    async def close(self) -> None:
        """Free its resources."""
        ...


class HttpSearch:
    """A search engine with an HTTP API: the common part. `hint`: why it may not answer."""

    hint = "Is the key valid?"
    transport: httpx2.AsyncBaseTransport | None = None
    """The transport for requests, instead of the network."""

    async def check(self) -> None:
        """Search once, when the server starts: a failure is logged."""
        with suppress(ToolError, TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self.search("test", 1, Domains())
                return
        log.warning("--web-search does not work yet", hint=self.hint)

    async def search(self, query: str, count: int, domains: Domains) -> Sequence[SearchHit]:
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                body = await self._ask(self.request(self._client, query, count, domains))
            hits = self.results(body)
        except (TimeoutError, httpx2.HTTPError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("search failed", error=_why(error))
            raise ToolError(
                "The search engine does not answer. Try again, or open a page by its URL."
            ) from error
        by_url = {result.url: result for result in hits if domains.admits(result.url)}
        return list(by_url.values())[:count]

    def request(self, client: httpx2.AsyncClient, query: str, count: int, domains: Domains) -> httpx2.Request:
        """The request for a search."""
        raise NotImplementedError

    def results(self, body: bytes) -> Sequence[SearchHit]:
        """The results in an answer. Raises MsgspecError."""
        raise NotImplementedError

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        headers = {"Accept-Encoding": accepted_encodings()}
        return httpx2.AsyncClient(
            headers=headers, timeout=SEARCH_SECONDS, trust_env=False, transport=self.transport
        )

    async def _ask(self, request: httpx2.Request) -> bytes:
        answer = await self._client.send(request, stream=True)
        try:
            answer.raise_for_status()
            body, cut = await read_body(answer, ANSWER_BYTES)
            if cut:
                raise msgspec.DecodeError(f"The answer has more than {ANSWER_BYTES} bytes.")
            return body
        finally:
            await answer.aclose()


class _Listed(Struct, frozen=True):
    results: list[dict[str, Any]] = []


class SearxngSearch(HttpSearch):
    """A SearXNG server at `base_url`, whose `search.formats` has `json`.

    The address is the operator's, and may be in a private network. Raises ToolError if it is not a URL.
    """

    hint = "Is that its address, and has search.formats in its settings.yml json?"

    def __init__(self, base_url: str) -> None:
        if not host_of(base_url):
            raise ToolError(
                f"'{base_url}' is not the URL of a search engine. Give one like http://127.0.0.1:8888, "
                f"{', '.join(WITH_KEY)} or a folder of pages."
            )
        self._url = base_url.rstrip("/") + "/search"

    def request(self, client: httpx2.AsyncClient, query: str, count: int, domains: Domains) -> httpx2.Request:
        parameters = {"q": _restricted_query(query, domains), "format": "json"}
        return client.build_request("GET", self._url, params=parameters)

    def results(self, body: bytes) -> Sequence[SearchHit]:
        listed = decode_untrusted(body, _Listed).results
        return [_result(result, "content") for result in listed]


class _BraveAnswer(Struct):
    web: _Listed = _Listed()


class BraveSearch(HttpSearch):
    """Brave's search API, with a key of the operator's."""

    def __init__(self, key: str, url: str = "https://api.search.brave.com/res/v1/web/search") -> None:
        self._key = key
        self._url = url

    def request(self, client: httpx2.AsyncClient, query: str, count: int, domains: Domains) -> httpx2.Request:
        parameters = {
            "q": _restricted_query(query, domains)[:BRAVE_CHARS],
            "count": str(min(count, BRAVE_RESULTS)),
        }
        headers = {"X-Subscription-Token": self._key, "Accept": "application/json"}
        return client.build_request("GET", self._url, params=parameters, headers=headers)

    def results(self, body: bytes) -> Sequence[SearchHit]:
        """Its texts are HTML."""
        listed = decode_untrusted(body, _BraveAnswer).web.results
        hits = (_result(result, "description") for result in listed)
        return [SearchHit(_plain(hit.title), hit.url, _plain(hit.snippet)) for hit in hits]


class TavilySearch(HttpSearch):
    """Tavily's search API, with a key of the operator's."""

    def __init__(self, key: str, url: str = "https://api.tavily.com/search") -> None:
        self._key = key
        self._url = url

    def request(self, client: httpx2.AsyncClient, query: str, count: int, domains: Domains) -> httpx2.Request:
        given = {"query": query, "max_results": min(count, TAVILY_RESULTS)}
        lists = {"include_domains": domains.allowed, "exclude_domains": domains.blocked}
        headers = {"Authorization": f"Bearer {self._key}"}
        body = given | {name: [*named] for name, named in lists.items() if named}
        return client.build_request("POST", self._url, json=body, headers=headers)

    def results(self, body: bytes) -> Sequence[SearchHit]:
        listed = decode_untrusted(body, _Listed).results
        return [_result(result, "content") for result in listed]


WITH_KEY: Mapping[str, Callable[[str], HttpSearch]] = {"brave": BraveSearch, "tavily": TavilySearch}
"""Search engines that need a key, by their names in `--web-search`."""


def _why(error: Exception) -> str:
    """The error, without the URL, which has the query, and may have a password."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the search engine answered with status {error.response.status_code}"
    return str(error) or type(error).__name__


def _restricted_query(query: str, domains: Domains) -> str:
    """The query, with the domains named in the way that most search engines understand."""
    sites = " OR ".join(f"site:{domain}" for domain in domains.allowed)
    included = [f"({sites})"] if 1 <= len(domains.allowed) <= _SITES else []
    return " ".join([query, *included, *(f"-site:{domain}" for domain in domains.blocked[:_SITES])])


def _result(given: dict[str, Any], text: str) -> SearchHit:
    title, url, snippet = (str(given.get(name) or "") for name in ("title", "url", text))
    return SearchHit(title, url, snippet)


def _plain(html: str) -> str:
    return unescape(_TAG.sub("", html))
