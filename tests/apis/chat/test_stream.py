"""Chat completions without I/O: what a request becomes, and that a stream adds up to the full answer."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec import json as msgspec_json

from antiphon.apis import wire
from antiphon.apis.chat.accept import accept
from antiphon.apis.chat.answer import Answer
from antiphon.apis.chat.envelope import Envelope
from antiphon.apis.chat.schema import (
    ChatCompletionChunk,
    ChatRequest,
    ChunkChoice,
    Delta,
    FunctionFragment,
    ToolCallFragment,
)
from antiphon.apis.chat.stream import _MARK, Stream
from antiphon.core.chunks import Finish, FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TextEnded,
    TextStarted,
    Usage,
    hide_calls,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Function, Sampling, Turn
from antiphon.decode.table import Table
from antiphon.dialects.hermes import HERMES
from tests.laws import cut, cuts, decode, model_text

ENVELOPE = Envelope("chatcmpl-1", "org/m\"odel'é", 1_700_000_000, 7)
HERMES_TABLE = Table(HERMES.grammar)

ODD = [
    "a", "", " ", '"', '\\"', "\\", "\\u0041", "\n\r\t", "\x00\x1f\x7f", "é", "👋🏽🌍", "日本語", "\u2028\u2029",
    "</script>", "data: [DONE]\n\n", _MARK, f'"{_MARK}"', "\ue000", "\ufffd", "\U0010ffff", "x" * 10_000,
]  # fmt: skip
PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "_call>", "\n", " ", "hello", "<", _MARK, "👋",
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f"', '"arguments": {', '{"arguments":{},"name":"g"}',
    '{"name": "f", "arguments": "\\ud800"}', '{"name": "\\ud800"}', '<tool_call>{"name": "f"}</tool_call>',
    '<think>hm</think>', "{", "}", "[", "]", ",", ":", '"', "null", "\\", "\\ud83d", "é", '"x\n"', "STOP", "ST",
]  # fmt: skip


def encoded(delta: Delta, choice: int, usage: Any) -> bytes:
    """The chunk as the wire types encode it."""
    choices = (ChunkChoice(choice, delta),)
    chunk = ChatCompletionChunk(ENVELOPE.id, ENVELOPE.created, ENVELOPE.model, choices, usage=usage)
    return msgspec_json.encode(chunk)


def call_delta(index: int, arguments: str) -> Delta:
    return Delta(tool_calls=(ToolCallFragment(index=index, function=FunctionFragment(arguments=arguments)),))


def added(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a message, as clients do."""
    for key, value in delta.items():
        if key != "tool_calls":
            old = message.get(key)
            message[key] = value if old is None else old if value is None else old + value
            continue
        for fragment in value:
            calls = message.setdefault("tool_calls", [])
            if fragment["index"] == len(calls):
                assert fragment["function"].keys() == {"name", "arguments"}
                calls.append(
                    {"id": fragment["id"], "type": fragment["type"], "function": dict(fragment["function"])}
                )
            else:
                assert fragment.keys() == {"index", "function"}
                assert fragment["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += fragment["function"]["arguments"]


def accumulated(payloads: Iterable[bytes]) -> dict[int, dict[str, Any]]:
    """The choices of a full answer, made of the chunks of a stream. Checks what a stream may not do."""
    choices: dict[int, dict[str, Any]] = {}
    for payload in payloads:
        chunk = json.loads(payload)
        assert (chunk["id"], chunk["object"]) == (ENVELOPE.id, "chat.completion.chunk")
        assert (chunk["model"], chunk["created"]) == (ENVELOPE.model, ENVELOPE.created)
        [part] = chunk["choices"]
        delta, index = part["delta"], part["index"]
        if index not in choices:
            assert delta["role"] == "assistant"
            choices[index] = {"index": index, "message": {}, "finish_reason": None, "logprobs": None}
        else:
            assert "role" not in delta
        choice = choices[index]
        assert choice["finish_reason"] is None, "a chunk after the last"
        if part["finish_reason"] is not None:
            assert delta == {}
            choice["finish_reason"] = part["finish_reason"]
        added(choice["message"], delta)
    return choices


def answered(choices: Sequence[Sequence[Event]]) -> dict[str, Any]:
    """The body of the full answer."""
    answer = Answer(ENVELOPE, len(choices))
    for index, events in enumerate(choices):
        answer.push(index, list(events))
    body: dict[str, Any] = json.loads(answer.body())
    for choice in body["choices"]:
        assert choice["message"].pop("annotations") == []  # not in streams
    return body


def streamed(events: Sequence[Event], *, batch: int = 1) -> list[bytes]:
    stream = Stream(ENVELOPE, 1, include_usage=False)
    payloads = []
    for start in range(0, len(events), batch):
        payloads += stream.push(0, list(events[start : start + batch]))
    assert stream.finish() == [b"[DONE]"]
    return payloads


# Frequent chunks


@pytest.mark.parametrize("usage", [UNSET, None])
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_frequent_chunks_are_those_of_the_wire_types(text: str, usage: Any) -> None:
    stream = Stream(ENVELOPE, 6, include_usage=usage is None)
    stream.push(5, [CallStarted("call_0", "f"), CallEnded(complete=True), CallStarted("call_1", "f")])

    [content] = stream.push(5, [TextDelta(text, text)])
    [reasoning] = stream.push(5, [ReasoningDelta(text, text)])
    arguments = stream.push(5, [ArgumentsDelta(text, text)])

    assert content == encoded(Delta(content=text), 5, usage)
    assert reasoning == encoded(Delta(reasoning_content=text), 5, usage)
    assert arguments == ([encoded(call_delta(1, text), 5, usage)] if text else [])
    assert json.loads(content)["choices"][0]["delta"]["content"] == text
    assert b"\n" not in content + reasoning + b"".join(arguments), "a line end would end the event"


@given(text=st.text())
def test_any_text_comes_back_from_a_frequent_chunk(text: str) -> None:
    *_, payload = Stream(ENVELOPE, 1, include_usage=False).push(0, [TextDelta(text, text)])

    assert payload == encoded(Delta(content=text), 0, UNSET)
    assert json.loads(payload)["choices"][0]["delta"]["content"] == text


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
     '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
     '<tool_call>{"name": "f", "arguments": {"a": "\\ud800", "\\udfff": "\\ud83d\\ude00"}}</tool_call>',
     '<tool_call>{"arguments": {"a": "\\udfff"}, "name": "f"}</tool_call>'],
)  # fmt: skip
def test_lone_surrogates_that_a_model_escapes_never_become_characters(text: str) -> None:
    events = decode(HERMES_TABLE, list(text))

    choices = accumulated(streamed(events))
    assert [choices[0]] == answered([events])["choices"]
    assert "\\ud" in json.dumps(choices[0])  # as the escape that it was, in arguments or in text
    assert "\ud800" not in str(choices[0])


# The stream and the fold


@given(
    text=model_text(PIECES),
    at=cuts,
    reason=st.sampled_from(FinishReason),
    stop=st.sampled_from([(), ("STOP",)]),
    hidden=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_the_stream_adds_up_to_the_full_answer(
    text: str, at: list[int], reason: FinishReason, stop: tuple[str, ...], hidden: bool
) -> None:
    events = decode(HERMES_TABLE, cut(text, at), Finish(reason), stop=stop)
    events = hide_calls(events) if hidden else events

    payloads = streamed(events)

    assert streamed(events, batch=7) == payloads
    assert list(accumulated(payloads).values()) == answered([events])["choices"]
    assert json.loads(payloads[0])["choices"][0]["delta"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
    }
    finishes = [json.loads(payload)["choices"][0]["finish_reason"] for payload in payloads]
    assert finishes[-1] is not None
    assert set(finishes[:-1]) == {None}


@given(texts=st.lists(model_text(PIECES), min_size=2, max_size=4), order=st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_choices_that_come_interleaved_do_not_mix(texts: list[str], order: Any) -> None:
    choices = [decode(HERMES_TABLE, list(text)) for text in texts]
    stream = Stream(ENVELOPE, len(texts), include_usage=True)
    payloads: list[bytes] = []
    left = [list(events) for events in choices]
    while any(left):
        index = order.choice([index for index, events in enumerate(left) if events])
        payloads += stream.push(index, [left[index].pop(0)])
    usage, end = stream.finish()

    body = answered(choices)
    assert [choice for _, choice in sorted(accumulated(payloads).items())] == body["choices"]
    assert {json.loads(payload)["usage"] for payload in payloads} == {None}
    assert end == b"[DONE]"
    assert (json.loads(usage)["choices"], json.loads(usage)["usage"]) == ([], body["usage"])


def test_usage_counts_the_prompt_once_and_every_choice() -> None:
    used = [Usage(10, 4, 3), Usage(20, 0, 5)]
    choices = [[Finished(FinishReason.STOP, usage)] for usage in used]

    usage = answered(choices)["usage"]

    assert usage == {
        "prompt_tokens": 7,
        "completion_tokens": 30,
        "total_tokens": 37,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_without_usage_the_chunks_have_no_such_key() -> None:
    events: list[Event] = [
        TextStarted(),
        TextDelta("a", "a"),
        TextEnded(),
        Finished(FinishReason.STOP, Usage()),
    ]

    assert all("usage" not in json.loads(payload) for payload in streamed(events))


@pytest.mark.parametrize(
    ("text", "reason", "content", "finish"),
    [
        ("", FinishReason.STOP, "", "stop"),
        ("<think>hm", FinishReason.LENGTH, "", "length"),
        ("Hi", FinishReason.STOP, "Hi", "stop"),
        ('<tool_call>{"name": "f"}</tool_call>', FinishReason.STOP, None, "tool_calls"),
        ('<tool_call>{"name": "f"}</tool_call>', FinishReason.LENGTH, None, "length"),
        ('<tool_call>{"name": "f", "arguments": {"a"', FinishReason.LENGTH, None, "length"),
        ('<tool_call>{"name": "f", "arguments": {"a"', FinishReason.STOP, None, "stop"),
        ('A<tool_call>{"name": "f"}</tool_call>B', FinishReason.STOP, "AB", "tool_calls"),
    ],
)
def test_content_and_finish_reason(text: str, reason: FinishReason, content: str | None, finish: str) -> None:
    events = decode(HERMES_TABLE, list(text), Finish(reason))

    for choice in (answered([events])["choices"][0], accumulated(streamed(events))[0]):
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish)


# What a request becomes


def turn(**more: Any) -> Turn:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more}
    return accept(wire.decode(json.dumps(body).encode(), ChatRequest), "me")


def text(*words: str) -> tuple[TextPart, ...]:
    return tuple(TextPart(word) for word in words)


HI = (Message(Role.USER, text("Hi")),)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, Turn("m", HI, owner="me")),
        ({"model": "other"}, Turn("other", HI, owner="me")),
        ({"temperature": 0}, Turn("m", HI, sampling=Sampling(temperature=0), owner="me")),
        ({"temperature": 1.5}, Turn("m", HI, sampling=Sampling(temperature=1.5), owner="me")),
        ({"top_p": 0.5}, Turn("m", HI, sampling=Sampling(top_p=0.5), owner="me")),
        ({"presence_penalty": -2}, Turn("m", HI, sampling=Sampling(presence_penalty=-2), owner="me")),
        ({"frequency_penalty": 2}, Turn("m", HI, sampling=Sampling(frequency_penalty=2), owner="me")),
        ({"seed": 0}, Turn("m", HI, sampling=Sampling(seed=0), owner="me")),
        ({"seed": -5}, Turn("m", HI, sampling=Sampling(seed=-5), owner="me")),
        ({"max_tokens": 3}, Turn("m", HI, sampling=Sampling(max_tokens=3), owner="me")),
        ({"max_completion_tokens": 4}, Turn("m", HI, sampling=Sampling(max_tokens=4), owner="me")),
        ({"max_completion_tokens": 4, "max_tokens": 3}, Turn("m", HI, sampling=Sampling(max_tokens=4), owner="me")),
        ({"stop": "a"}, Turn("m", HI, stop=("a",), owner="me")),
        ({"stop": ["a", "b"]}, Turn("m", HI, stop=("a", "b"), owner="me")),
        ({"stop": []}, Turn("m", HI, owner="me")),
        ({"n": 3}, Turn("m", HI, choices=3, owner="me")),
        ({"tool_choice": "none"}, Turn("m", HI, calls=False, owner="me")),
        ({"tool_choice": "auto"}, Turn("m", HI, owner="me")),
        ({"response_format": {"type": "text"}, "logprobs": False}, Turn("m", HI, owner="me")),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, Turn("m", HI, (Function("f"),), owner="me")),
        (
            {"tools": [{"type": "function",
                        "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}]},
            Turn("m", HI, (Function("f", "d", SCHEMA, True),), owner="me"),
        ),
    ],
)  # fmt: skip
def test_each_field_lands_in_the_turn(more: dict[str, Any], expected: Turn) -> None:
    assert turn(**more) == expected


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


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
        ({"role": "user", "content": "U", "reasoning_content": "R"}, [Message(Role.USER, text("U"))]),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, [FunctionCall("c1", "f", '{"a": 1}')]),
        ({"role": "assistant", "content": "A", "reasoning_content": "R", "tool_calls": [CALL, CALL]},
         [Reasoning("R"), Message(Role.ASSISTANT, text("A")), *[FunctionCall("c1", "f", '{"a": 1}')] * 2]),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "é"}}}]},
         [FunctionCall("messages[0].tool_calls[0]", "f", '{"a":"é"}')]),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}, [FunctionCall("c", "f", "{}")]),
        ({"role": "tool", "tool_call_id": "c1", "content": "sunny"}, [FunctionOutput("c1", text("sunny"))]),
        ({"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "sunny"}]},
         [FunctionOutput("c1", text("sunny"), "f")]),
    ],
)  # fmt: skip
def test_each_message_becomes_items(message: dict[str, Any], items: list[Item]) -> None:
    assert turn(messages=[message]).items == tuple(items)


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


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
         "messages[0].content[1].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.type"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        turn(**more)

    assert raised.value.param == param
    assert raised.value.message.endswith(".")
