"""Chat completions without I/O: a stream adds up to the full answer, for all options of its presentation."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec import json as msgspec_json
from msgspec.structs import replace

from antiphon.apis.chat.resource import (
    ChatCompletionChunk,
    ChunkChoice,
    CustomFragment,
    Delta,
    FunctionFragment,
    ToolCallFragment,
)
from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.envelope import PresentationOptions, UsageReports
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineError
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
)
from antiphon.core.plain_tokens import MARK
from antiphon.core.turn import CallMode, ToolChoice
from antiphon.dialects.registry import DIALECTS
from antiphon.run.call_filter import CallFilter
from tests.apis.chat.support import ENVELOPE, accumulated, answered, payloads_of, said, streamed
from tests.contracts.dialect import TOOLS, answers, table_of
from tests.laws import cut, cuts, model_text
from tests.openai_schema import validate
from tests.search import examples

COUNTED = PresentationOptions(usage=UsageReports.LAST)

ODD = [
    "a", "", " ", '"', '\\"', "\\", "\\u0041", "\n\r\t", "\x00\x1f\x7f", "é", "👋🏽🌍", "日本語", "\u2028\u2029",
    "</script>", "data: [DONE]\n\n", MARK, f'"{MARK}"', "\ue000", "\ufffd", "\U0010ffff", "x" * 10_000,
]  # fmt: skip
PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "_call>", "\n", " ", "hello", "<", MARK, "👋",
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f"', '"arguments": {', '{"arguments":{},"name":"g"}',
    '{"name": "f", "arguments": "\\ud800"}', '{"name": "\\ud800"}', '<tool_call>{"name": "f"}</tool_call>',
    '<tool_call>{"name": "g", "arguments": {"input": "\\u00e9\\n"}}</tool_call>', '"input": "',
    '<think>hm</think>', "{", "}", "[", "]", ",", ":", '"', "null", "\\", "\\ud83d", "é", '"x\n"', "STOP", "ST",
]  # fmt: skip
PRESENTATIONS = st.builds(
    PresentationOptions,
    reasoning=st.sampled_from([("reasoning_content", "reasoning"), ("reasoning",), ()]),
    custom=st.sampled_from([frozenset(), frozenset({"g"})]),
    logprobs=st.sampled_from([None, 0, 1, 5]),
    tokens_as_ids=st.booleans(),
    token_ids=st.booleans(),
    echo=st.sampled_from(["", "as I said"]),
    usage=st.sampled_from(UsageReports),
    padded=st.booleans(),
)


def encoded(delta: Delta, choice: int, usage: Any) -> bytes:
    """The chunk as the wire types encode it."""
    choices = (ChunkChoice(choice, delta),)
    chunk = ChatCompletionChunk(ENVELOPE.id, ENVELOPE.created, ENVELOPE.model, choices, usage=usage)
    return msgspec_json.encode(chunk)


# Frequent chunks


@pytest.mark.parametrize("usage", [UNSET, None])
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_frequent_chunks_are_those_of_the_wire_types(text: str, usage: Any) -> None:
    stream = ChatCompletionStream(ENVELOPE, 6, COUNTED if usage is None else PresentationOptions())
    stream.begin()
    stream.push(5, [CallStarted("call_0", "f"), CallEnded(complete=True), CallStarted("call_1", "f")])
    call = ToolCallFragment(index=1, function=FunctionFragment(arguments=text))

    [content] = payloads_of(stream.push(5, [TextDelta(text, text)]))
    [reasoning] = payloads_of(stream.push(5, [ReasoningDelta(text, text)]))
    arguments = payloads_of(stream.push(5, [ArgumentsDelta(text, text)]))

    assert content == encoded(Delta(content=text), 5, usage)
    assert reasoning == encoded(Delta(reasoning_content=text, reasoning=text), 5, usage)
    assert arguments == ([encoded(Delta(tool_calls=(call,)), 5, usage)] if text else [])
    assert json.loads(content)["choices"][0]["delta"]["content"] == text


@given(text=st.text())
def test_any_text_comes_back_from_a_frequent_chunk(text: str) -> None:
    stream = ChatCompletionStream(ENVELOPE, 1)
    stream.begin()
    [payload] = payloads_of(stream.push(0, [TextDelta(text, text)]))

    assert payload == encoded(Delta(content=text), 0, UNSET)
    assert json.loads(payload)["choices"][0]["delta"]["content"] == text


def test_a_custom_tool_gets_its_text_as_it_comes() -> None:
    stream = ChatCompletionStream(ENVELOPE, 1, PresentationOptions(custom=frozenset({"sh"})))
    stream.begin()
    [opening] = payloads_of(stream.push(0, [CallStarted("call_0", "sh")]))
    sent = stream.push(
        0, [ArgumentsDelta(text, text) for text in ('{"inp', 'ut": "a', "\\", 'n", ', '"x": 1}')]
    )

    first = ToolCallFragment(index=0, id="call_0", type="custom", custom=CustomFragment("sh", ""))
    assert opening == encoded(Delta(tool_calls=(first,)), 0, UNSET)
    assert payloads_of(sent) == [
        encoded(Delta(tool_calls=(ToolCallFragment(index=0, custom=CustomFragment(input=text)),)), 0, UNSET)
        for text in ("a", "\n")
    ]


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
     '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
     '<tool_call>{"name": "f", "arguments": {"a": "\\ud800", "\\udfff": "\\ud83d\\ude00"}}</tool_call>',
     '<tool_call>{"arguments": {"a": "\\udfff"}, "name": "f"}</tool_call>'],
)  # fmt: skip
def test_half_characters_that_a_model_escapes_are_replaced(text: str) -> None:
    events = said(list(text))

    choices = accumulated(streamed(events))
    assert [choices[0]] == answered([events])["choices"]
    [call] = choices[0]["message"]["tool_calls"]
    read = str((call["function"]["name"], json.loads(call["function"]["arguments"])))
    assert "\ufffd" in read
    assert read.encode()  # there are no halves left


# The stream and the fold


@given(
    text=model_text(PIECES),
    at=cuts,
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    stop=st.sampled_from([(), ("STOP",)]),
    calling=st.sampled_from([CallMode.AUTO, CallMode.NONE]),
    presentation=PRESENTATIONS,
)
@settings(max_examples=examples(500))
def test_the_stream_adds_up_to_the_full_answer(
    *,
    text: str,
    at: list[int],
    reason: FinishReason,
    stop: tuple[str, ...],
    calling: CallMode,
    presentation: PresentationOptions,
) -> None:
    events = CallFilter(ToolChoice(calling)).filter(said(cut(text, at), reason, stop=stop))

    payloads = streamed(events, presentation)

    if not presentation.padded:
        assert streamed(events, presentation, batch=7) == payloads
    assert list(accumulated(payloads, presentation).values()) == answered([events], presentation)["choices"]
    chunks = [json.loads(payload) for payload in payloads]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    finishes = [part["finish_reason"] for chunk in chunks for part in chunk["choices"]]
    assert finishes[-1] is not None
    assert set(finishes[:-1]) == {None}


WRITTEN = [
    (name, case["output"], case.get("state"))
    for name in (dialect.names[0] for dialect in DIALECTS)
    for case in answers(name).values()
    if "output" in case
]
"""Dialect, an answer in it, and where that begins."""


@given(
    written=st.sampled_from(WRITTEN),
    at=cuts,
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    hosted=st.sampled_from([frozenset(), frozenset({"now"}), frozenset(TOOLS)]),
    presentation=PRESENTATIONS,
)
@settings(max_examples=examples(500))
def test_the_answers_of_every_dialect_add_up(
    written: tuple[str, str, str | None],
    at: list[int],
    reason: FinishReason,
    hosted: frozenset[str],
    presentation: PresentationOptions,
) -> None:
    dialect, text, state = written
    events = [
        replace(event, hosted=True) if isinstance(event, CallStarted) and event.name in hosted else event
        for event in said(cut(text, at), reason, table=table_of(dialect), state=state, tools=TOOLS)
    ]

    choices = list(accumulated(streamed(events, presentation), presentation).values())

    assert choices == answered([events], presentation)["choices"]


@given(text=model_text(PIECES), at=cuts, presentation=PRESENTATIONS)
@settings(max_examples=examples(100))
def test_the_one_call_of_old_requests_adds_up(
    text: str, at: list[int], presentation: PresentationOptions
) -> None:
    presentation = PresentationOptions(
        legacy=True, logprobs=presentation.logprobs, token_ids=presentation.token_ids
    )
    events = CallFilter(ToolChoice(parallel=False)).filter(said(cut(text, at)))

    choices = accumulated(streamed(events, presentation), presentation)

    assert list(choices.values()) == answered([events], presentation)["choices"]
    assert "tool_calls" not in choices[0]["message"]
    if choices[0]["finish_reason"] == "function_call":
        assert choices[0]["message"]["function_call"].keys() == {"name", "arguments"}


@given(
    text=model_text(PIECES),
    at=cuts,
    presentation=PRESENTATIONS,
    legacy=st.booleans(),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
@settings(max_examples=examples(60))
def test_every_body_and_chunk_is_what_openai_says(
    text: str, at: list[int], presentation: PresentationOptions, legacy: bool, reason: FinishReason
) -> None:
    pieces = cut(text, at)
    presentation = PresentationOptions(legacy=True) if legacy else presentation
    events = CallFilter(ToolChoice(parallel=not legacy)).filter(said(pieces, reason))

    validate("CreateChatCompletionResponse", answered([events, events], presentation))
    for payload in streamed(events, presentation):
        validate("CreateChatCompletionStreamResponse", payload)


@given(texts=st.lists(model_text(PIECES), min_size=2, max_size=4), order=st.randoms(use_true_random=False))
@settings(max_examples=examples(100))
def test_choices_that_come_interleaved_do_not_mix(texts: list[str], order: Any) -> None:
    choices = [said(list(text)) for text in texts]
    stream = ChatCompletionStream(ENVELOPE, len(texts), COUNTED)
    payloads = stream.begin()
    left = [Accumulator().extend(events) for events in choices]
    while any(left):
        index = order.choice([index for index, events in enumerate(left) if events])
        payloads += stream.push(index, [left[index].pop(0)])
    payloads = payloads_of(payloads)
    usage, end = payloads_of(stream.finish())

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
        "prompt_tokens": 2,
        "completion_tokens": 30,
        "total_tokens": 32,
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
        ('<tool_call>{"name": "f", "arguments": {"a"', FinishReason.STOP, None, "tool_calls"),
        ('<tool_call>{"name": "f", "arg', FinishReason.STOP, '<tool_call>{"name": "f", "arg', "stop"),
        ('<tool_call>{"name": "f", "arg', FinishReason.LENGTH, "", "length"),
        ('A<tool_call>{"name": "f"}</tool_call>B', FinishReason.STOP, "A\n\nB", "tool_calls"),
    ],
)
def test_content_and_finish_reason(text: str, reason: FinishReason, content: str | None, finish: str) -> None:
    events = said(list(text), reason)

    for choice in (answered([events])["choices"][0], accumulated(streamed(events))[0]):
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish)


def test_the_error_of_all_choices_is_told_by_the_end_of_the_stream_alone() -> None:
    events = [*said(["Hi"])[:-1], Finished(FinishReason.ERROR, Usage())]
    assert [json.loads(payload)["choices"][0]["finish_reason"] for payload in streamed(events)] == [
        None,
        None,
    ]
    [failure, _] = payloads_of(ChatCompletionStream(ENVELOPE, 1).fail(EngineError()))
    assert json.loads(failure)["error"]["code"] == "engine_error"
