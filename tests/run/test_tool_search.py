"""The search for functions: what it finds, and what it says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.positions import (
    FEW,
    MAX_LINES,
    CatalogueEntry,
    are_few,
    catalogue_text,
    describe,
    found_text,
)
from antiphon.core.tool_result import FoundFunctions, ToolResult
from antiphon.core.turn import Function, Placement, SearchAction
from antiphon.run.bounded import BoundedPool
from antiphon.run.replay import ReplayLog, ToolResultEntry, read_entries
from antiphon.run.tool_search import BEST, MAX_PATTERN, ToolSearch, ranked
from antiphon.toolkits.registry import built_in


def function(name: str, about: str = "", **properties: str) -> Function:
    schema = {
        "type": "object",
        "properties": {key: {"description": text} for key, text in properties.items()},
    }
    return Function(name, about, schema, placement=Placement.SEARCH)


FUNCTIONS = (
    function("listOpenOrders", "Lists them.", customer_id="The number of the client."),
    function("crm__delete_customer", "Deletes somebody for good."),
    function("get_weather", "Tells the weather of a place.", city="Where."),
    function("send_mail", "Sends a letter.", recipient="Who gets it."),
)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open orders", "listOpenOrders"),
        ("what is the weather in Rome?", "get_weather"),
        ("deleting customers", "crm__delete_customer"),
        ("number of the client", "listOpenOrders"),
        ("recipient", "send_mail"),
        ("send_mail", "send_mail"),
    ],
)
def test_it_finds_by_names_descriptions_and_arguments(query: str, first: str) -> None:
    assert ranked(FUNCTIONS, query)[0] == first


def test_a_name_finds_that_function_alone() -> None:
    assert ranked((*FUNCTIONS, function("send_mail_later")), " send_mail ") == ["send_mail"]


def test_equal_ones_are_found_in_their_order_and_only_some() -> None:
    assert ranked([function(f"order_{number}") for number in range(9)], "order") == [
        f"order_{number}" for number in range(BEST)
    ]
    assert ranked(FUNCTIONS, "zebra") == []
    assert ranked((), "order") == []


@given(st.text(), st.lists(st.text(max_size=20), max_size=5))
def test_any_query_is_answered(query: str, texts: list[str]) -> None:
    functions = [function(f"f{number}", text) for number, text in enumerate(texts)]
    assert {*ranked(functions, query)} <= {each.name for each in functions}


async def run(action: str, **arguments: Any) -> ToolResult:
    return await ToolSearch((*FUNCTIONS, Function("own")), BoundedPool()).run(action, arguments)


async def test_a_pattern_finds_too() -> None:
    found = await run(SearchAction.PATTERN, pattern="(?i)ORDERS|letter")
    assert found.details == FoundFunctions(("listOpenOrders", "send_mail"))


@pytest.mark.parametrize("pattern", ["(", "x" * (MAX_PATTERN + 1), 7])
async def test_a_wrong_pattern_is_a_result(pattern: Any) -> None:
    found = await run(SearchAction.PATTERN, pattern=pattern)
    assert found.failed
    assert found.details is None


async def test_what_it_says_is_what_is_read_back() -> None:
    found = await run(SearchAction.QUERY, query="weather")
    (weather,) = [each for each in FUNCTIONS if each.name == "get_weather"]
    described = replace(weather, placement=Placement.CONVERSATION)
    assert found.text == found_text([described])
    assert weather.description is not None
    assert weather.description in describe([weather])
    assert (await run(SearchAction.QUERY, query="zebra")).text == found_text([])
    assert (await run(SearchAction.QUERY, words="zebra")).failed


def test_what_was_found_comes_back_from_a_log() -> None:
    entry = ToolResultEntry(ToolResult("text", FoundFunctions(("a",))), 0.1, 1)
    log = ReplayLog()
    log.write(entry)
    assert read_entries([log.new()], built_in().details) == [entry]


def test_few_are_short_ones() -> None:
    few = [function(f"f{number}") for number in range(FEW - 1)]
    assert are_few(few, 0)
    assert are_few(few, 100_000)
    assert not are_few(few, 100)
    assert not are_few([*few, function("one_more")], 0)


def test_a_catalogue_is_bounded() -> None:
    entries = [CatalogueEntry(f"f{number}", "What it does.\nMore.") for number in range(2000)]
    text = catalogue_text(entries, "tool_search")
    assert text.count("\n") == MAX_LINES + 2
    assert "More." not in text
    assert text.endswith("- and 900 more")
