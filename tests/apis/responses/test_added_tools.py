"""Tools that come in the input count from their place on, and leave the prompt before them as it was."""

import json
from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Message
from antiphon.core.positions import PlaceMessage
from antiphon.core.turn import Placement, Turn
from antiphon.dialects.registry import find
from antiphon.render.renderer import CHATML, ChatTemplateRenderer
from tests.apis.responses.support import OWNER, SEALER, accepted

LOOKUP = {"type": "function", "name": "lookup", "description": "Looks up", "parameters": {"type": "object"}}
DOCS = {"type": "namespace", "name": "docs", "description": "d", "tools": [LOOKUP]}
OWN = {"type": "function", "name": "own", "parameters": {"type": "object"}}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds.",
    "parameters": {"type": "object"},
}
USER = {"role": "user", "content": "Hello"}
SAID = {"role": "assistant", "content": "Yes?"}


def added(*tools: Any) -> Any:
    return {"type": "additional_tools", "role": "developer", "tools": [*tools]}


def searched(*tools: Any, **fields: Any) -> list[Any]:
    common = {"call_id": "c1", "execution": "client", "status": "completed"} | fields
    call = {"type": "tool_search_call", "arguments": {"query": "docs"}} | common
    return [call, {"type": "tool_search_output", "tools": [*tools]} | common]


def turn(*items: Any, **fields: Any) -> Turn:
    return accepted(input=[*items], **fields).turn


def names(turn: Turn) -> tuple[list[str], list[str]]:
    """The functions that the prompt lists, and those that the conversation announces."""
    return [each.name for each in turn.listed_tools], [
        each.name for each in turn.tools if each.placement is Placement.CONVERSATION
    ]


def text(turn: Turn) -> str:
    return "\n".join(item.text for item in turn.items if isinstance(item, Message | FunctionOutput))


def prompt(turn: Turn) -> str:
    renderer = ChatTemplateRenderer(CHATML, bos="", eos="", tool_prompt=find("hermes").tool_prompt)
    return renderer.transcript(turn)


def test_those_at_the_beginning_are_listed() -> None:
    system = {"role": "developer", "content": "Be kind."}
    for items in ([added(DOCS), USER], [system, added(DOCS), USER]):
        shown = turn(*items)
        assert names(shown) == (["docs__lookup"], [])
        assert "lookup" not in text(shown)


def test_those_that_come_later_are_described_at_their_place() -> None:
    shown = turn(USER, SAID, added(DOCS), USER, tools=[OWN])
    assert names(shown) == (["own"], ["docs__lookup"])
    described = shown.items[2]
    assert isinstance(described, Message)
    assert json.loads(described.text.splitlines()[1])["name"] == "docs__lookup"


def test_without_any_that_are_listed_the_later_ones_are() -> None:
    """The prompt would not say how functions are called."""
    assert names(turn(USER, SAID, added(DOCS), USER)) == (["docs__lookup"], [])


def test_one_that_is_listed_already_stays_listed() -> None:
    assert names(turn(USER, SAID, added(OWN), tools=[OWN])) == (["own"], [])
    assert names(turn(USER, *searched(LOOKUP), *searched(LOOKUP), tools=[SEARCH])) == (
        ["tool_search"],
        ["lookup"],
    )


def test_what_a_search_found_is_its_result() -> None:
    shown = turn(USER, *searched(DOCS), tools=[SEARCH])
    assert names(shown) == (["tool_search"], ["docs__lookup"])
    assert shown.items[1] == FunctionCall("c1", "tool_search", '{"query": "docs"}')
    assert isinstance(shown.items[2], FunctionOutput)
    assert '"docs__lookup"' in shown.items[2].text


def test_a_search_of_a_server_is_paired_by_its_order() -> None:
    first, second = (searched(tool, call_id=None, execution="server") for tool in (DOCS, LOOKUP))
    calls = [first[0] | {"id": "a"}, second[0] | {"id": "b"}]
    shown = turn(USER, *calls, first[1], second[1], tools=[OWN])
    assert names(shown) == (["own"], ["docs__lookup", "lookup"])
    assert [(item.call_id, type(item)) for item in shown.items[1:]] == [  # type: ignore[union-attr]
        *(("a", FunctionCall), ("b", FunctionCall), ("a", FunctionOutput), ("b", FunctionOutput)),
    ]


def test_what_a_search_found_is_described_without_its_call() -> None:
    shown = turn(USER, searched(DOCS, call_id=None, execution="server")[1], tools=[OWN])
    assert names(shown) == (["own"], ["docs__lookup"])
    assert [type(item) for item in shown.items] == [Message, PlaceMessage]


def test_a_search_that_found_nothing_says_so() -> None:
    assert "Found no functions." in text(turn(USER, *searched(), tools=[SEARCH]))


@pytest.mark.parametrize("later", [[added(DOCS), USER], searched(DOCS)])
def test_a_prompt_is_only_appended_to(later: list[Any]) -> None:
    earlier = turn(USER, tools=[OWN, SEARCH])
    longer = turn(USER, *later, tools=[OWN, SEARCH])
    assert prompt(longer).startswith(prompt(earlier))
    assert "docs__lookup" in prompt(longer)


def test_the_tools_before_a_compaction_are_listed_after_it() -> None:
    compaction = {"type": "compaction", "encrypted_content": SEALER.seal(OWNER, "We met.")}
    shown = turn(USER, *searched(DOCS), compaction, USER, tools=[SEARCH])
    assert names(shown) == (["tool_search", "docs__lookup"], [])


def test_they_may_be_demanded() -> None:
    choice = {"type": "function", "name": "lookup", "namespace": "docs"}
    shown = turn(USER, SAID, added(DOCS), USER, tools=[OWN], tool_choice=choice)
    assert shown.tool_choice.names == {"docs__lookup"}


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (
            {"type": "mcp", "server_label": "a", "server_url": "http://a", "authorization": "secret"},
            "input[0].tools[0].type",
        ),
        ({"type": "function"}, "input[0].tools[0].name"),
        ("lookup", "input[0].tools[0]"),
    ],
)
def test_what_cannot_be_added_is_refused_by_its_place(tool: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        accepted(input=[added(tool), USER])
    assert error.value.param == param
