"""Ids of calls: as Anthropic's clients take them, and back as the model wrote them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.messages.ids import SERVER_TOOL_USE, TOOL_USE, core_id, wire_id


@given(st.text(min_size=1))
def test_any_id_is_one_of_anthropics_and_comes_back(call_id: str) -> None:
    shown = wire_id(TOOL_USE, call_id)
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", shown)
    if not call_id.startswith("call_") and "-x" not in call_id:
        assert core_id(shown) == call_id


@pytest.mark.parametrize("call_id", ["functions.get_weather:0", "chatcmpl-tool-1", "é👋"])
def test_ids_of_families(call_id: str) -> None:
    assert core_id(wire_id(TOOL_USE, call_id)) == call_id
    shown = wire_id(SERVER_TOOL_USE, call_id)
    assert re.fullmatch("srvtoolu_[a-zA-Z0-9_]+", shown)
    assert core_id(shown) == call_id


@pytest.mark.parametrize(
    "given_id", ["toolu_", "mine", "toolu_01-x41-b", "toolu_a-xffffff-", "toolu_-xd800-"]
)
def test_ids_that_were_not_written_here_stay(given_id: str) -> None:
    assert core_id(given_id) == (given_id if given_id == "toolu_" else given_id.removeprefix("toolu_"))
