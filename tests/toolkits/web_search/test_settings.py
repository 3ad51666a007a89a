"""The settings of OpenAI's tools are parsed, and errors name them."""

from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.toolkits.web_search.settings import EXTENTS, SearchSettings, parse_web_settings
from antiphon.tools.web.domains import Domains


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "web_search_2025_08_26", "filters": None, "user_location": None},
        {"type": "web_search_preview", "search_content_types": ["text"], "search_context_size": "medium"},
        {"type": "web_search_preview_2025_03_11", "user_location": {"type": "approximate"}, "filters": {}},
    ],
)
def test_a_tool_without_wishes_is_the_default(tool: dict[str, Any]) -> None:
    assert parse_web_settings(tool, "tools[0]") == SearchSettings()


def test_everything_that_is_acted_on_is_read() -> None:
    place = {
        "type": "approximate",
        "city": "Milan",
        "country": "IT",
        "region": None,
        "timezone": "Europe/Rome",
    }
    tool = {
        "type": "web_search",
        "filters": {
            "allowed_domains": ["https://Example.org/", "*.b.org"],
            "blocked_domains": ["münchen.de"],
        },
        "user_location": place,
        "search_context_size": "high",
        "external_web_access": True,
    }
    domains = Domains(("example.org", "b.org"), ("xn--mnchen-3ya.de",))
    assert parse_web_settings(tool, "tools[0]") == SearchSettings(
        domains, EXTENTS["high"], "Milan, IT (time zone Europe/Rome)"
    )


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"filters": []}, "tools[1].filters"),
        ({"filters": {"allowed_domains": "a.org"}}, "tools[1].filters.allowed_domains"),
        ({"filters": {"blocked_domains": ["a.org", 3]}}, "tools[1].filters.blocked_domains[1]"),
        ({"filters": {"allowed_domains": ["a.org", "b.org/path"]}}, "tools[1].filters.allowed_domains[1]"),
        ({"filters": {"allowed_domains": [""]}}, "tools[1].filters.allowed_domains[0]"),
        ({"search_context_size": "huge"}, "tools[1].search_context_size"),
        ({"search_context_size": 3}, "tools[1].search_context_size"),
        ({"user_location": {"city": 3}}, "tools[1].user_location.city"),
        ({"external_web_access": "no"}, "tools[1].external_web_access"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_web_settings({"type": "web_search", **tool}, "tools[1]")
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize(
    ("url", "admitted"),
    [
        ("https://example.org/a", True),
        ("http://sub.EXAMPLE.org.:8080/", True),
        ("https://bad.example.org/", False),
        ("https://notexample.org/", False),
        ("https://example.org@evil.com/", False),
        ("https://evil.com/?example.org", False),
        ("ftp://example.org/", False),
        ("no url", False),
        ("http://[", False),
    ],
)
def test_domains_hold_for_their_subdomains_and_no_others(url: str, admitted: bool) -> None:
    assert Domains(("example.org",), ("bad.example.org",)).admits(url) is admitted


def test_without_allowed_domains_all_are() -> None:
    assert Domains().admits("https://anywhere.net/")
