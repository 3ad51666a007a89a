"""The settings of `web_search` in a request: domains, how much is shown, where the user is."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.tools.settings import invalid_setting, parse_settings
from antiphon.tools.web.domains import Domains, host_of


class ResultSize(Struct, frozen=True):
    """The size of the results of a search.

    At most this number of `results`, and of characters of each `snippet`.
    """

    results: int
    snippet: int


EXTENTS: Mapping[str, ResultSize] = {
    "low": ResultSize(5, 200),
    "medium": ResultSize(10, 300),
    "high": ResultSize(20, 400),
}
"""`search_context_size` → how much is shown."""


class SearchSettings(Struct, frozen=True):
    """A tool as the request gave it. `user_location` is text for the model."""

    domains: Domains = Domains()
    result_size: ResultSize = EXTENTS["medium"]
    user_location: str = ""


class _Filters(Struct, frozen=True):
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


class _Location(Struct, frozen=True):
    city: str | None = None
    region: str | None = None
    country: str | None = None
    timezone: str | None = None


class _WebSearchSettings(Struct, frozen=True):
    """The supported fields of OpenAI's `web_search` and `web_search_preview` tools.

    A tool whose `external_web_access` is false is not offered, and does not get here.
    """

    filters: _Filters | None = None
    user_location: _Location | None = None
    search_context_size: str | None = None
    external_web_access: bool | None = None


READ = ("type", *_WebSearchSettings.__struct_fields__)
"""The members of the tool that are acted on."""


def parse_web_settings(settings: Mapping[str, Any], where: str) -> SearchSettings:
    """The settings at `where` in a request. Raises RequestError."""
    given = parse_settings(settings, _WebSearchSettings, where)
    filters = given.filters or _Filters()
    size = given.search_context_size or "medium"
    if size not in EXTENTS:
        raise invalid_setting(f"{where}.search_context_size", "Use 'low', 'medium' or 'high'.")
    domains = Domains(
        _domains(filters.allowed_domains, f"{where}.filters.allowed_domains"),
        _domains(filters.blocked_domains, f"{where}.filters.blocked_domains"),
    )
    return SearchSettings(domains, EXTENTS[size], _location_text(given.user_location))


def _domains(given: list[str] | None, where: str) -> tuple[str, ...]:
    return tuple(_domain(domain, f"{where}[{index}]") for index, domain in enumerate(given or ()))


def _domain(given: str, where: str) -> str:
    bare = given.strip().removeprefix("https://").removeprefix("http://").rstrip("/").removeprefix("*.")
    host = "" if any(sign in bare for sign in "/:@?#%* ") else host_of(f"https://{bare}")
    if not host:
        raise invalid_setting(where, "Expected a domain, such as 'example.com'.")
    return host


def _location_text(location: _Location | None) -> str:
    if location is None:
        return ""
    parts = ", ".join(filter(None, (location.city, location.region, location.country)))
    return " ".join(filter(None, (parts, location.timezone and f"(time zone {location.timezone})")))
