"""Messages that stand before the input: harmony's, or those of Chat Completions."""

import json
from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Message, Reasoning, Role, TextPart
from tests.apis.responses.support import accepted

HARMONY = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "channel": "analysis", "content": [{"type": "text", "text": "Hm."}]},
    {
        "role": "assistant",
        "channel": "commentary",
        "recipient": "functions.weather",
        "content_type": "<|constrain|>json",
        "content": [{"type": "text", "text": '{"city": "Rome"}'}],
    },
    {"role": "tool", "name": "functions.weather", "recipient": "assistant", "content": "Sunny."},
    {"role": "assistant", "channel": "final", "content": "It is sunny."},
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
    {"role": "tool", "tool_call_id": "c", "content": "Sunny."},
    {"role": "assistant", "content": "It is sunny."},
]  # fmt: skip


def said(role: Role, text: str) -> Message:
    return Message(role, (TextPart(text),))


def read(messages: Any, **fields: Any) -> list[Any]:
    return list(accepted(previous_input_messages=messages, **fields).turn.items)


@pytest.mark.parametrize(("messages", "thinks"), [(HARMONY, True), (CHAT, False)])
def test_they_come_before_the_input(messages: Any, thinks: bool) -> None:
    asked, question, *thought, call, result, answer, new = read(messages, input="And now?")

    assert [asked, question, answer, new] == [
        said(Role.SYSTEM, "Be brief."),
        said(Role.USER, "Weather?"),
        said(Role.ASSISTANT, "It is sunny."),
        said(Role.USER, "And now?"),
    ]
    assert [item.text for item in thought if isinstance(item, Reasoning)] == (["Hm."] if thinks else [])
    assert isinstance(call, FunctionCall)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Rome"})
    assert result == FunctionOutput(call.call_id, (TextPart("Sunny."),))


def test_they_are_stored_as_items_of_the_input() -> None:
    types = [item.type for item in accepted(previous_input_messages=HARMONY).items]
    assert types == [
        "message", "message", "reasoning", "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (["Hi"], "[0]"),
        ([{"content": "Hi"}], "[0].role"),
        ([{"role": "wizard", "content": "Hi"}], "[0].role"),
        ([{"role": "tool", "content": "Hi"}], "[0].role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": [{}]}], "[0].tool_calls[0].function"),
    ],
)
def test_what_is_wrong_with_them_is_named(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(messages)
    assert raised.value.param == f"previous_input_messages{param}"


@pytest.mark.parametrize("other", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_they_stand_in_for_what_is_stored(other: Any) -> None:
    with pytest.raises(RequestError) as raised:
        read(CHAT, **other)
    assert raised.value.param == "previous_input_messages"
    read([], **other)
