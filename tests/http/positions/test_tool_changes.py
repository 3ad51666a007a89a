"""Tools that messages add, remove and find, and settings of messages: over HTTP, in the words of several dialects."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http.messages_api import MessagesApi, asking
from tests.http.positions.model import CallingModel, begins
from tests.http.positions.test_tool_search import MANY

ORDERS = {
    "name": "list_orders",
    "description": "Lists the orders of a customer.",
    "input_schema": {
        "type": "object",
        "properties": {"customer_id": {"type": "integer", "description": "Whose orders."}},
        "required": ["customer_id"],
        "additionalProperties": False,
    },
}
NOTHING = {"type": "object", "properties": {}}
LATER = {**ORDERS, "defer_loading": True}
OTHERS = [
    {"name": f"tool_{number}", "description": "No.", "input_schema": NOTHING, "defer_loading": True}
    for number in range(MANY)
]
OWN = {"name": "now", "input_schema": NOTHING}
BM25 = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
REGEX = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
CALL = ("list_orders", {"customer_id": 7})
SEARCHES = {
    "bm25": (BM25, ("tool_search_tool_bm25", {"query": "orders of a customer"})),
    "regex": (REGEX, ("tool_search_tool_regex", {"pattern": "(?i)ORDERS"})),
    "early": (BM25, ("list_orders", {"customer": "seven"})),
}


@pytest_asyncio.fixture
async def api(model: CallingModel, dialect: str) -> AsyncIterator[MessagesApi]:
    async with asking(model, dialect=dialect, date="2025-06-28") as api:
        yield api


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", **({"content": [*blocks]} if blocks else {}), **fields}


def addition(**tool: Any) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": tool}


def removal(name: str) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def answered(body: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": body["content"]}


def result(body: Any, content: Any = "3") -> dict[str, Any]:
    id_ = next(block["id"] for block in body["content"] if block["type"] == "tool_use")
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": content}]}


def kinds(body: Any) -> list[str]:
    return [block["type"] for block in body["content"]]


async def said(api: MessagesApi, model: CallingModel, messages: list[Any], *steps: Any, **fields: Any) -> Any:
    """The answer, which is the same streamed."""
    model.will(*steps, *steps)
    return await api.ask(messages, **fields)


# Searches


@pytest.mark.parametrize("way", SEARCHES)
async def test_what_is_found_is_called_in_the_same_answer(
    api: MessagesApi, model: CallingModel, way: str
) -> None:
    search, query = SEARCHES[way]
    tools = [OWN, search, LATER, *OTHERS]
    first = await said(api, model, [user("How many?")], query, CALL, tools=tools)
    assert kinds(first) == ["server_tool_use", "tool_search_tool_result", "tool_use"]
    asked, found, call = first["content"]
    assert asked["name"] == search["name"]
    assert found["content"] == {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "list_orders"}],
    }
    assert (call["name"], call["input"]) == CALL
    assert first["stop_reason"] == "tool_use"
    assert "customer_id" not in model.prompts[0]
    assert "list_orders: Lists the orders of a customer." in model.prompts[0]
    assert "customer_id" in model.prompts[1]
    first_prompts = model.prompts[2:]

    messages = [user("How many?"), answered(first), result(first)]
    second = await said(api, model, messages, "Three.", tools=tools)
    messages += [answered(second), user("Again.")]
    third = await said(api, model, messages, CALL, tools=tools)
    assert kinds(third) == ["tool_use"]
    assert begins([*first_prompts, *model.prompts[4::2]])

    choice = {"type": "tool", "name": "list_orders"}
    await said(api, model, messages, CALL, tools=tools, tool_choice=choice)
    assert model.allows(CALL)
    refused = await api.refused([user("How many?")], tools=tools, tool_choice=choice)
    assert refused["type"] == "invalid_request_error"


async def test_a_wrong_pattern_is_told_the_model(api: MessagesApi, model: CallingModel) -> None:
    tools = [OWN, REGEX, LATER, *OTHERS]
    first = await said(
        api, model, [user("?")], ("tool_search_tool_regex", {"pattern": "("}), "Oh.", tools=tools
    )
    error = first["content"][1]["content"]
    assert (error["type"], error["error_code"]) == ("tool_search_tool_result_error", "invalid_tool_input")
    shown = model.prompts[-1]
    await said(api, model, [user("?"), answered(first), user("Well?")], "Oh.", tools=tools)
    assert begins([shown, model.prompts[-1]])


async def test_a_few_tools_are_given_at_once(api: MessagesApi, model: CallingModel) -> None:
    first = await said(api, model, [user("How many?")], CALL, tools=[OWN, BM25, LATER])
    assert kinds(first) == ["tool_use"]
    assert [note["param"] for note in first["notes"]] == ["tools"]


async def test_a_search_of_the_clients_returns_references(api: MessagesApi, model: CallingModel) -> None:
    tools = [{"name": "find", "input_schema": NOTHING}, LATER]
    first = await said(api, model, [user("How many?")], ("find", {}), tools=tools)
    assert "list_orders" not in model.prompts[-1]
    references = [{"type": "tool_reference", "tool_name": "list_orders"}]
    messages = [user("How many?"), answered(first), result(first, references)]
    second = await said(api, model, messages, CALL, tools=tools)
    assert (second["content"][0]["name"], second["content"][0]["input"]) == CALL
    assert begins([model.prompts[0], model.prompts[-1]])


# Additions and removals


@pytest.mark.parametrize(
    ("tools", "tool"),
    [
        ([OWN, LATER], {"type": "tool_reference", "name": "list_orders"}),
        ([OWN], {"type": "tool_definition", "definition": ORDERS}),
    ],
)
async def test_a_tool_counts_from_its_addition_to_its_removal(
    api: MessagesApi, model: CallingModel, tools: list[Any], tool: Any
) -> None:
    steps = [
        [user("One")],
        [system(addition(**tool)), user("Two")],
        [system(removal("list_orders")), user("Three")],
        [system(addition(type="tool_reference", name="list_orders")), user("Four")],
    ]
    messages: list[Any] = []
    shown, allowed = [], []
    for given in steps:
        messages += given
        await said(api, model, messages, "Yes.", tools=tools, tool_choice={"type": "any"})
        shown.append(model.prompts[-1])
        allowed.append(model.allows(CALL))
        messages.append({"role": "assistant", "content": "Yes."})
    assert allowed == [False, True, False, True]
    assert begins(shown)
    assert "You cannot call these functions any more: list_orders." in shown[2]


async def test_an_added_tool_that_is_strict_is_held_to_its_schema(
    api: MessagesApi, model: CallingModel
) -> None:
    tool = {"type": "tool_definition", "definition": {**ORDERS, "strict": True}}
    messages = [user("One"), system(addition(**tool)), user("Two")]
    body = await said(api, model, messages, CALL, tools=[OWN])
    assert (body["content"][0]["name"], body["content"][0]["input"]) == CALL
    assert model.allows(CALL)
    assert not model.allows((CALL[0], {"customer_id": "seven"}))


async def test_a_removed_tool_cannot_be_called(api: MessagesApi, model: CallingModel) -> None:
    messages = [
        user("One"),
        {"role": "assistant", "content": "Yes."},
        system(removal("list_orders")),
        user("Two"),
    ]
    body = await said(api, model, messages, CALL, tools=[OWN, ORDERS])
    assert kinds(body) == []
    choice = {"type": "tool", "name": "list_orders"}
    refused = await api.refused(messages, tools=[OWN, ORDERS], tool_choice=choice)
    assert "removed" in refused["message"]


@pytest.mark.parametrize(
    "block",
    [
        addition(type="tool_reference", name="nobody"),
        removal("nobody"),
        addition(type="mcp_toolset_reference", server_name="nobody"),
        addition(type="wrong"),
        addition(type="tool_definition", definition={**OWN, "description": "Another."}),
        addition(type="tool_definition"),
        {"type": "tool_addition"},
    ],
)
async def test_what_cannot_be_changed_is_refused(api: MessagesApi, block: Any) -> None:
    refused = await api.refused([user("One"), system(block), user("Two")], tools=[OWN])
    assert refused["type"] == "invalid_request_error"


# Settings


async def test_an_effort_counts_from_its_message_on(api: MessagesApi, model: CallingModel) -> None:
    messages: list[Any] = []
    for given in ([user("One")], [system(output_config={"effort": "high"}), user("Two")], [user("Three")]):
        messages += given
        await said(api, model, messages, "Yes.", output_config={"effort": "low"})
        messages.append({"role": "assistant", "content": "Yes."})
    assert begins(model.prompts[::2])
    assert model.prompts[-1].count("Reasoning effort from now on: high.") == 1
    refused = await api.refused([user("One"), system(), user("Two")])
    assert "content" in refused["message"]


@pytest.mark.parametrize(("clear_at", "stays"), [("next_user_message", False), ("never", True), (None, True)])
async def test_a_text_may_be_for_one_turn_only(
    api: MessagesApi, model: CallingModel, clear_at: str | None, stays: bool
) -> None:
    reminder = system({"type": "text", "text": "Be brief."}, clear_at=clear_at)
    await said(api, model, [user("One"), reminder], "Yes.")
    assert "Be brief." in model.prompts[-1]
    await said(
        api, model, [user("One"), reminder, {"role": "assistant", "content": "Yes."}, user("Two")], "Yes."
    )
    assert ("Be brief." in model.prompts[-1]) is stays
