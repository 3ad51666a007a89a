"""What clients can ask to see of an answer, streamed and whole."""

import json
import math
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.apis.chat.answer import ChatCompletionBuilder
from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.envelope import PresentationOptions, UsageReports
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Candidate, FinishReason, Token
from antiphon.core.events import Event, Finished, TextDelta, TextEnded, TextStarted, Usage
from tests.apis.chat.support import ENVELOPE, accumulated, answered, payloads_of, said, streamed
from tests.counting import lines
from tests.openai_schema import validate

REASONING = ["<think>", "hm", "</think>", "So", " be", "", "👋"]
CALLING = ["Now", "<tool_call>", '{"name": "f", ', '"arguments": {"a": 1}}', "</tool_call>"]


def spoken(*tokens: Token) -> list[Event]:
    text = "".join(token.text for token in tokens)
    end = Finished(FinishReason.STOP, Usage(len(tokens)))
    return [TextStarted(), TextDelta(text, text, tokens), TextEnded(), end]


def both(events: list[Event], presentation: PresentationOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice of the full answer, and what the stream adds up to."""
    return answered([events], presentation)["choices"][0], accumulated(
        streamed(events, presentation), presentation
    )[0]


# Log probabilities


def test_log_probabilities_are_those_of_visible_text() -> None:
    for choice in both(said(REASONING), PresentationOptions(logprobs=1)):
        entries = choice["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == ["So", " be", "\ufffd", "👋"]
        assert [len(entry["top_logprobs"]) for entry in entries] == [1, 1, 1, 1]
        assert choice["logprobs"]["refusal"] is None
    for choice in both(said(CALLING), PresentationOptions(logprobs=1)):
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["Now"]


def test_at_the_end_of_a_full_answer_nothing_is_left_to_do_for_single_tokens() -> None:
    def work(tokens: int) -> int:
        top = tuple(Candidate(number, "x", -1.0) for number in range(20))
        builder = ChatCompletionBuilder(ENVELOPE, 1, PresentationOptions(logprobs=20))
        builder.push(0, Accumulator().extend(spoken(*[Token(0, "x", -1.0, top)] * tokens)))
        bodies: list[bytes] = []
        count = lines(lambda: bodies.append(builder.body()))
        assert len(json.loads(bodies[0])["choices"][0]["logprobs"]["content"]) == tokens
        return count

    assert work(10) == work(1000)


def test_an_entry_has_text_bytes_and_alternatives() -> None:
    top = (Candidate(3, "é", -0.5), Candidate(4, "", -1.5, b"\xc3"), Candidate(5, "x", -math.inf))
    events = spoken(Token(3, "é", -0.5, top))

    for choice in both(events, PresentationOptions(logprobs=3)):
        assert choice["logprobs"]["content"] == [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [0xC3, 0xA9],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [0xC3]},
                    {"token": "x", "logprob": -9999.0, "bytes": [0x78]},
                ],
            }
        ]


@pytest.mark.parametrize("value", [None, -math.inf, math.nan, -1e300])
def test_what_is_no_number_in_json_is_very_unlikely(value: float | None) -> None:
    for choice in both(spoken(Token(3, "a", value)), PresentationOptions(logprobs=0)):
        assert choice["logprobs"]["content"][0]["logprob"] == -9999.0


def test_tokens_go_by_id_if_the_client_wants() -> None:
    events = spoken(Token(3, "a", -0.5, (Candidate(4, "b", -1.0),)))

    for choice in both(events, PresentationOptions(logprobs=1, tokens_as_ids=True)):
        [entry] = choice["logprobs"]["content"]
        assert (entry["token"], entry["bytes"]) == ("token_id:3", [97])
        assert [other["token"] for other in entry["top_logprobs"]] == ["token_id:4"]


def test_log_probabilities_come_with_their_text() -> None:
    chunks = [
        json.loads(payload)["choices"][0]
        for payload in streamed(said(REASONING), PresentationOptions(logprobs=0))
    ]

    shown = [
        (chunk["delta"]["content"], chunk["logprobs"]["content"]) for chunk in chunks if chunk["logprobs"]
    ]
    assert [(text, [entry["token"] for entry in entries]) for text, entries in shown] == [
        ("So", ["So"]),
        (" be", [" be"]),
        ("👋", ["\ufffd", "👋"]),
    ]


@pytest.mark.parametrize("said_", [REASONING, CALLING])
@pytest.mark.parametrize("names", [("reasoning",), ()])
def test_with_ids_each_token_has_a_log_probability(said_: list[str], names: tuple[str, ...]) -> None:
    presentation = PresentationOptions(logprobs=0, token_ids=True, tokens_as_ids=True, reasoning=names)
    for choice in both(said(said_), presentation):
        named = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert named == [f"token_id:{token}" for token in choice["token_ids"]]
        assert len(named) > 4
    for payload in streamed(said(said_), presentation):
        part = json.loads(payload)["choices"][0]
        assert len(part["token_ids"]) == len((part["logprobs"] or {"content": []})["content"])


# Reasoning


@pytest.mark.parametrize(
    "names", [("reasoning_content", "reasoning"), ("reasoning",), ("reasoning_content",), ()]
)
def test_reasoning_goes_by_the_names_that_are_wanted(names: tuple[str, ...]) -> None:
    for choice in both(said(REASONING), PresentationOptions(reasoning=names)):
        shown = {key: text for key, text in choice["message"].items() if key.startswith("reasoning")}
        assert shown == dict.fromkeys(names, "hm")
        assert choice["message"]["content"] == "So be👋"


def test_the_tokens_of_hidden_reasoning_are_hidden() -> None:
    for choice in both(said(REASONING), PresentationOptions(reasoning=(), token_ids=True)):
        assert choice["token_ids"] == [0, 2, 3, 4, 5, 6]


# Calls


def test_the_call_of_an_old_request() -> None:
    for choice in both(said(CALLING), PresentationOptions(legacy=True)):
        assert choice["message"]["function_call"] == {"name": "f", "arguments": '{"a": 1}'}
        assert (choice["finish_reason"], choice["message"]["content"]) == ("function_call", "Now")


def test_the_call_of_a_custom_tool() -> None:
    call = ["<tool_call>", '{"name": "sh", "argu', 'ments": {"input": "l', "s \\", 'u00e9"}}', "</tool_call>"]

    for choice in both(said(call), PresentationOptions(custom=frozenset({"sh"}))):
        assert choice["message"]["tool_calls"] == [
            {"id": "call_0", "type": "custom", "custom": {"name": "sh", "input": "ls é"}}
        ]
        assert choice["finish_reason"] == "tool_calls"


# Ids, prompts, usage


def test_token_ids_are_all_that_the_model_wrote() -> None:
    presentation = PresentationOptions(token_ids=True)
    for choice in both(said(CALLING), presentation):
        assert choice["token_ids"] == [0, 1, 2, 3, 4]
    first, *rest = [json.loads(payload) for payload in streamed(said(CALLING), presentation)]
    assert first["prompt_token_ids"] == [5, 6] == answered([said(CALLING)], presentation)["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in rest)
    assert [chunk["choices"][0]["token_ids"] for chunk in rest] == [[0], [1, 2], [], [3, 4]]


def test_the_prompt_is_shown_if_the_client_wants() -> None:
    presentation = PresentationOptions(prompt_text=True, prompt_logprobs=True)
    events = said(["a"])

    body = answered([events], presentation)
    first, *_ = [json.loads(payload) for payload in streamed(events, presentation)]

    assert body["prompt_text"] == first["prompt_text"] == "Hi"
    assert body["prompt_logprobs"] == [
        None,
        {
            "6": {"logprob": -0.5, "rank": 3, "decoded_token": "i"},
            "7": {"logprob": -0.25, "rank": 1, "decoded_token": "o"},
        },
    ]
    assert "prompt_token_ids" not in body


def test_usage_grows_from_chunk_to_chunk() -> None:
    chunks = [
        json.loads(payload)
        for payload in streamed(said(REASONING), PresentationOptions(usage=UsageReports.EACH))
    ]

    used = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert used == sorted(used)
    assert (used[0], used[-1]) == (0, 7)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {2}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == chunks[-2]["usage"] == answered([said(REASONING)])["usage"]


def test_the_usage_of_a_chunk_is_that_of_its_choice() -> None:
    stream = ChatCompletionStream(ENVELOPE, 2, PresentationOptions(usage=UsageReports.EACH))
    begun = [json.loads(chunk) for chunk in payloads_of(stream.begin())]
    assert [chunk["usage"]["completion_tokens"] for chunk in begun] == [0, 0]
    for choice, count in ((0, 1), (1, 1), (1, 2), (0, 2)):
        [chunk] = payloads_of(stream.push(choice, [TextDelta("a", "a", (Token(1, "a"),))]))
        assert json.loads(chunk)["usage"]["completion_tokens"] == count


# The rest


def test_an_echo_comes_first_and_is_no_token_of_the_answer() -> None:
    presentation = PresentationOptions(echo="As I said: ", logprobs=0, token_ids=True)
    for choice in both(said(["So"]), presentation):
        assert choice["message"]["content"] == "As I said: So"
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["So"]
    for choice in both(said(CALLING[1:]), PresentationOptions(echo="Now")):
        assert choice["message"]["content"] == "Now"


def test_padding_hides_lengths() -> None:
    texts = ["a", "bb", "ccc", "d" * 20, '"', "é"]
    events: list[Event] = [TextDelta(text, text) for text in texts]

    streams = [
        ChatCompletionStream(ENVELOPE, 1, PresentationOptions(padded=padded)) for padded in (True, False)
    ]
    for stream in streams:
        stream.begin()

    padded, plain = [payloads_of(stream.push(0, events)) for stream in streams]

    assert [json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in padded] == texts
    assert len({len(chunk) for chunk in padded}) == 1
    assert "obfuscation" not in json.loads(plain[0])


def test_a_choice_that_failed_says_so_and_the_others_stand() -> None:
    failed = [TextStarted(), TextDelta("a", "a"), TextEnded()]
    end = Finished(FinishReason.ERROR, Usage(), error="The model failed to answer. Try again.")
    told = {"message": end.error, "type": "server_error", "param": None, "code": "engine_error"}

    for choice in both([*failed, end], PresentationOptions()):
        assert (choice["finish_reason"], choice["error"]) == ("error", told)
        assert choice["message"]["content"] == "a"
    body = answered([[*failed, end], said(["fine"])])
    assert "error" not in body["choices"][1]
    validate("CreateChatCompletionResponse", body)


def test_the_stream_of_an_answer_that_is_given_up_has_no_finish_reason() -> None:
    events = [*said(["a"])[:-1], Finished(FinishReason.ERROR, Usage())]

    chunks = [json.loads(payload) for payload in streamed(events)]

    assert {part["finish_reason"] for chunk in chunks for part in chunk["choices"]} == {None}


def test_demands_that_are_not_met_are_told() -> None:
    end = Finished(FinishReason.STOP, Usage(), unmet=("the answer is no JSON",))

    for choice in both([end], PresentationOptions()):
        assert choice["unmet"] == ["the answer is no JSON"]
    for choice in both(said(["a"]), PresentationOptions()):
        assert "unmet" not in choice


@pytest.mark.parametrize("stop", [None, "STOP", 7])
def test_the_stop_that_matched_is_told(stop: str | int | None) -> None:
    for choice in both([Finished(FinishReason.STOP, Usage(), stop)], PresentationOptions()):
        assert choice["stop_reason"] == stop


def test_what_a_request_and_a_server_say_of_themselves_comes_back() -> None:
    presentation = PresentationOptions(service_tier="default", metadata={"a": "b"})
    envelope = replace(ENVELOPE, system_fingerprint="fp_1")

    body = answered([said(["a"])], presentation, envelope)
    chunks = [json.loads(payload) for payload in streamed(said(["a"]), presentation, envelope=envelope)]

    assert (body["service_tier"], body["system_fingerprint"], body["metadata"]) == (
        "default",
        "fp_1",
        {"a": "b"},
    )
    assert {(chunk["service_tier"], chunk["system_fingerprint"]) for chunk in chunks} == {("default", "fp_1")}
    plain = answered([said(["a"])])
    assert not plain.keys() & {"service_tier", "system_fingerprint", "metadata", "prompt_text"}


def test_a_body_without_its_last_event_cannot_be_had() -> None:
    with pytest.raises(RuntimeError):
        ChatCompletionBuilder(ENVELOPE, 1).body()
