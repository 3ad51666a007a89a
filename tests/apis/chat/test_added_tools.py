"""Messages of the system may bring tools, as for Kimi K3: they count from there on."""

from typing import Any

import msgspec
import pytest

from antiphon.apis.chat.accept import accept
from antiphon.apis.chat.schema import ChatRequest
from antiphon.core.errors import RequestError
from antiphon.core.items import Message
from antiphon.core.turn import Placement, Turn

TOOL = {
    "type": "function",
    "function": {"name": "lookup", "description": "Looks up", "parameters": {"type": "object"}},
}
OWN = {"type": "function", "function": {"name": "own"}}
USER = {"role": "user", "content": "Hello"}


def turn(*messages: Any, **fields: Any) -> Turn:
    return accept(msgspec.convert({"model": "m", "messages": [*messages]} | fields, ChatRequest), "").turn


def names(turn: Turn) -> tuple[list[str], list[str]]:
    return [each.name for each in turn.listed_tools], [
        each.name for each in turn.tools if each.placement is Placement.CONVERSATION
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_they_are_listed_at_the_beginning_and_described_later(role: str) -> None:
    first = turn({"role": role, "tools": [TOOL]}, USER)
    assert names(first) == (["lookup"], [])
    assert len(first.items) == 1

    later = turn(USER, {"role": role, "content": "More.", "tools": [TOOL]}, USER, tools=[OWN])
    assert names(later) == (["own"], ["lookup"])
    assert [item.text for item in later.items if isinstance(item, Message)][1] == "More."
    assert '"lookup"' in later.items[2].text  # type: ignore[union-attr]

    assert names(turn(USER, {"role": role, "tools": [TOOL]}, USER)) == (["lookup"], [])
    assert names(turn(USER, {"role": role, "tools": [OWN]}, USER, tools=[OWN])) == (["own"], [])


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER | {"tools": [TOOL]}], "messages[0].tools"),
        ([{"role": "system", "tools": [{"type": "web_search"}]}], "messages[0].tools[0].type"),
        ([{"role": "system", "tools": [{"type": "function"}]}], "messages[0].tools[0].function"),
        ([USER, {"role": "system", "tools": []}], "messages[1].content"),
    ],
)
def test_others_are_refused(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        turn(*messages)
    assert error.value.param == param
