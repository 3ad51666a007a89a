"""What the messages of a chat request become; and that nothing in the past ends a conversation."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, Status
from tests.apis.chat.requests import accepted, text, turn

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
G_CALL = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "items"),
    [
        ({"role": "system", "content": "S"}, [Message(Role.SYSTEM, text("S"))]),
        ({"role": "developer", "content": "D"}, [Message(Role.DEVELOPER, text("D"))]),
        ({"role": "user", "content": "U", "name": "ann"}, [Message(Role.USER, text("U"), "ann")]),
        ({"role": "user", "content": ""}, [Message(Role.USER, ())]),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
         [Message(Role.USER, text("a", "b"))]),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, [Message(Role.ASSISTANT, text("no"))]),
        ({"role": "assistant"}, [Message(Role.ASSISTANT, ())]),
        ({"role": "assistant", "content": "A", "reasoning_content": "R"},
         [Reasoning("R"), Message(Role.ASSISTANT, text("A"))]),
        ({"role": "assistant", "content": "A", "reasoning": "R"}, [Reasoning("R"), Message(Role.ASSISTANT, text("A"))]),
        ({"role": "assistant", "content": None, "reasoning_content": "R"}, [Reasoning("R")]),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": "R"}, {"type": "text", "text": "A"}]},
         [Reasoning("R"), Message(Role.ASSISTANT, text("A"))]),
        ({"role": "assistant", "tool_calls": [CALL], "content": [{"type": "thinking", "thinking": [
            {"type": "text", "text": "R"}, {"type": "text", "text": "S"}]}]},
         [Reasoning("RS"), FunctionCall("c1", "f", '{"a": 1}')]),
        ({"role": "assistant", "reasoning": "R", "content": [{"type": "thinking", "thinking": "R"}]}, [Reasoning("R")]),
        ({"role": "user", "content": "U", "reasoning_content": "R"}, [Message(Role.USER, text("U"))]),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, [FunctionCall("c1", "f", '{"a": 1}')]),
        ({"role": "assistant", "content": "A", "reasoning_content": "R", "tool_calls": [CALL, CALL]},
         [Reasoning("R"), Message(Role.ASSISTANT, text("A")), *[FunctionCall("c1", "f", '{"a": 1}')] * 2]),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "é"}}}]},
         [FunctionCall("messages[0].tool_calls[0]", "f", '{"a":"é"}')]),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}, [FunctionCall("c", "f", "{}")]),
        ({"role": "assistant", "content": None, "refusal": "no"}, [Message(Role.ASSISTANT, text("no"))]),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
         [FunctionCall("c", "sh", '{"input":"ls"}')]),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
         [FunctionCall("messages[0].function_call", "f", "{}")]),
        ({"role": "tool", "tool_call_id": "c1", "content": "sunny"}, [FunctionOutput("c1", text("sunny"))]),
        ({"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "sunny"}]},
         [FunctionOutput("c1", text("sunny"), "f")]),
    ],
)  # fmt: skip
def test_each_message_becomes_items(message: dict[str, Any], items: list[Item]) -> None:
    assert turn(messages=[message]).items == tuple(items)


@pytest.mark.parametrize(
    ("role", "part", "param"),
    [
        ("assistant", {"type": "thinking"}, "messages[0].content[0].thinking"),
        ("assistant", {"type": "thinking", "thinking": [{"type": "text"}]}, "messages[0].content[0].thinking[0].text"),
        ("user", {"type": "thinking", "thinking": "R"}, "messages[0].content[0].type"),
    ],
)  # fmt: skip
def test_a_part_that_is_no_thought(role: str, part: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        turn(messages=[{"role": role, "content": [part]}])
    assert refused.value.param == param


def test_messages_stay_in_order() -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ]

    assert turn(messages=messages).items == (
        Message(Role.USER, text("weather?")),
        FunctionCall("c1", "f", '{"a": 1}'),
        FunctionOutput("c1", text("sunny")),
        Message(Role.ASSISTANT, text("Sunny.")),
    )


def test_a_result_of_old_finds_its_call_by_name() -> None:
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c0"}, G_CALL]},
        {"role": "function", "name": "g", "content": "1"},
        {"role": "function", "name": "f", "content": "2"},
    ]

    made = accepted(messages=messages)

    assert made.turn.items[2:] == (FunctionOutput("c2", text("1"), "g"), FunctionOutput("c0", text("2"), "f"))
    assert made.repairs == ()


# What was wrong


@pytest.mark.parametrize(
    ("messages", "items", "repairs"),
    [
        ([{"role": "assistant"}], [Message(Role.ASSISTANT, ())], ["messages[0] says nothing"]),
        ([{"role": "assistant", "content": "A", "tool_calls": []}], [Message(Role.ASSISTANT, text("A"))],
         ["messages[0].tool_calls is empty"]),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a'}}]}],
         [FunctionCall("c", "f", '{"a', Status.INCOMPLETE)], ["messages[0].tool_calls[0].function.arguments is no JSON object"]),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}]}],
         [FunctionCall("c", "f", "[1]", Status.INCOMPLETE)], ["messages[0].tool_calls[0].function.arguments is no JSON object"]),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[" * 5000}}]}],
         [FunctionCall("c", "f", "[" * 5000, Status.INCOMPLETE)],
         ["messages[0].tool_calls[0].function.arguments is no JSON object"]),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]}],
         [FunctionCall("c", "f", '{"a":1}')], ["messages[0].tool_calls[0].function.arguments is an object, not JSON as text"]),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": None, "arguments": ""}}]}],
         [FunctionCall("c", "unnamed", "{}")], ["messages[0].tool_calls[0].function.name is empty"]),
        ([{"role": "tool", "tool_call_id": "c1", "content": "x"}], [FunctionOutput("c1", text("x"))], []),
        ([{"role": "tool", "content": "x"}], [FunctionOutput("messages[0]", text("x"))],
         ["messages[0].tool_call_id is missing"]),
        ([{"role": "assistant", "tool_calls": [CALL, G_CALL]}, {"role": "tool", "content": "x"}, {"role": "tool"}],
         [FunctionCall("c1", "f", '{"a": 1}'), FunctionCall("c2", "g", "{}"),
          FunctionOutput("c1", text("x")), FunctionOutput("c2", ())],
         ["messages[1].tool_call_id is missing", "messages[2].tool_call_id is missing", "messages[2].content is missing"]),
    ],
)  # fmt: skip
def test_what_was_wrong_is_repaired_and_told(
    messages: list[Any], items: list[Item], repairs: list[str]
) -> None:
    made = accepted(messages=messages)

    assert made.turn.items == tuple(items)
    assert list(made.repairs) == repairs


ANYTHING = st.none() | st.text() | st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1))
CALLS = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.none() | st.text()}, optional={"arguments": ANYTHING})},
    optional={"id": st.none() | st.text(), "type": st.sampled_from(["function", "custom"])},
)
ANSWERS = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": st.none() | st.text(),
        "tool_calls": st.none() | st.lists(CALLS, max_size=3),
        "reasoning": st.none() | st.text(),
        "refusal": st.none() | st.text(),
    },
)
RESULTS = st.fixed_dictionaries(
    {"role": st.sampled_from(["tool", "function"])},
    optional={"content": st.none() | st.text(), "tool_call_id": st.none() | st.text(), "name": st.text()},
)


@given(messages=st.lists(ANSWERS | RESULTS, min_size=1, max_size=6))
def test_no_past_of_an_assistant_and_its_tools_is_refused(messages: list[dict[str, Any]]) -> None:
    items = turn(messages=json.loads(json.dumps(messages))).items

    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    assert sum(isinstance(item, FunctionCall) for item in items) == calls
    results = sum(message["role"] != "assistant" for message in messages)
    assert sum(isinstance(item, FunctionOutput) for item in items) == results
