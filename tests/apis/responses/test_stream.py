"""The stream of a response, and the response that it adds up to."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.apis.responses.output.reasoning import RAW_OPEN_RESPONSES
from antiphon.core.chunks import Candidate, FinishReason, Token
from antiphon.core.errors import EngineBusyError, EngineError, RequestError
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Markup,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    Usage,
)
from tests.apis.responses.support import (
    ABANDONED,
    ENDED,
    SEALER,
    Answering,
    accepted,
    answering_to,
    streamed,
    types,
    unseal,
)
from tests.response_invariants import check

USAGE = Usage(completion_tokens=5, reasoning_tokens=2, cached_tokens=1)
STOP = Finished(FinishReason.STOP, USAGE)
LENGTH = Finished(FinishReason.LENGTH, USAGE)
TEXT = [TextStarted(), TextDelta("Hel", "Hel"), TextDelta("lo", "lo"), TextEnded()]
THOUGHT = [ReasoningStarted(), ReasoningDelta("Hm", "Hm"), ReasoningEnded()]
CALL = [
    CallStarted("call_1", "f"),
    ArgumentsDelta('{"a"', '{"a"'),
    ArgumentsDelta(": 1}", ": 1}"),
    CallEnded(complete=True),
]
BROKEN_CALL = [CallStarted("call_1", "f"), ArgumentsDelta('{"a"', '{"a"'), CallEnded(complete=False)]

SUMMARISED = {"reasoning": {"summary": "auto"}}
SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
SEALED = {"include": ["reasoning.encrypted_content"]}
CUSTOM = {"tools": [{"type": "custom", "name": name} for name in ("f", "get_weather")]}
INNER = {"type": "function", "name": "f"}
SPACED = {"tools": [{"type": "namespace", "name": "ns", "description": "Some.", "tools": [INNER]}]}


def whole(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    """The response that a checked stream of these events ends with."""
    answering = answering_to(**fields)
    response = check(streamed(answering, events))
    assert json.loads(answering.body()) == response
    assert [json.loads(item.payload) for item in answering.items] == response["output"]
    return response


# Golden sequences


def test_text() -> None:
    assert types(streamed(answering_to(), [*TEXT, STOP])) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_thoughts_then_a_call() -> None:
    assert types(streamed(answering_to(), [*THOUGHT, *CALL, STOP]))[2:-1] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_thoughts_are_the_summary_that_was_asked_for() -> None:
    payloads = streamed(answering_to(**SUMMARISED), [*THOUGHT, STOP])

    assert types(payloads)[2:-1] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    [item] = check(payloads)["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "Hm"}]
    assert "content" not in item


def test_custom_tools_get_their_text() -> None:
    events = [CallStarted("call_1", "f")]
    events += [ArgumentsDelta(text, text) for text in ('{"in', 'put": "a', "\\", 'nb"', "}")]
    payloads = streamed(answering_to(**CUSTOM), [*events, CallEnded(complete=True), STOP])

    assert types(payloads)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    [call] = check(payloads)["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "f", "a\nb")


def test_open_responses_names_of_raw_reasoning() -> None:
    answering = answering_to({"raw_reasoning": RAW_OPEN_RESPONSES})

    told = types(streamed(answering, [*THOUGHT, STOP]))

    assert told[4:6] == ["reasoning.delta", "reasoning.done"]


# What is in the response


def test_a_completed_response() -> None:
    response = whole([*THOUGHT, *TEXT, STOP])

    assert response["status"] == "completed"
    assert response["completed_at"] == ENDED
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][1]["content"][0]["text"] == "Hello"
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


@pytest.mark.parametrize("cut_item", [TEXT, THOUGHT, BROKEN_CALL])
def test_a_cut_item_is_incomplete_and_so_is_the_response(cut_item: list[Event]) -> None:
    response = whole([*THOUGHT, *cut_item, LENGTH])

    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_an_item_that_ended_before_the_limit_is_complete() -> None:
    call = whole([*CALL, LENGTH])
    thought = whole([*THOUGHT, Markup("</think>"), LENGTH])

    assert call["status"] == thought["status"] == "incomplete"
    assert call["output"][0]["status"] == thought["output"][0]["status"] == "completed"


def test_a_call_that_the_model_broke_is_incomplete_and_what_it_wrote() -> None:
    response = whole([*BROKEN_CALL, *TEXT, STOP])

    assert response["status"] == "completed"
    assert response["output"][0]["arguments"] == '{"a"'
    assert [item["status"] for item in response["output"]] == ["incomplete", "completed"]


@pytest.mark.parametrize(("end", "status"), [(STOP, "completed"), (LENGTH, "incomplete")])
def test_an_answer_of_nothing_is_an_empty_message(end: Finished, status: str) -> None:
    [message] = whole([end])["output"]

    assert message["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert message["status"] == status


def test_the_phase_of_a_message_is_told() -> None:
    said = [TextStarted("final_answer"), TextDelta("Hi", "Hi"), TextEnded()]

    assert [item.get("phase") for item in whole([*TEXT, *said, STOP])["output"]] == [None, "final_answer"]


def test_a_call_in_a_namespace_has_both_names() -> None:
    events = [CallStarted("call_1", "ns__f"), CallEnded(complete=True), STOP]

    [call] = whole(events, **SPACED)["output"]

    assert (call["namespace"], call["name"]) == ("ns", "f")


def test_thoughts_can_be_hidden() -> None:
    response = whole([*THOUGHT, *TEXT, STOP], include_reasoning=False)

    assert [item["type"] for item in response["output"]] == ["message"]


def test_sealed_thoughts_can_be_opened_again() -> None:
    [item] = whole([*THOUGHT, STOP], **SEALED)["output"]

    assert unseal(item["encrypted_content"]) == "Hm"
    assert SEALER.unseal("someone else", item["encrypted_content"]) is None


def test_log_probabilities() -> None:
    top = (Candidate(1, "Hel", -0.1), Candidate(2, "�", -3.0, b"\xf0\x9f"))
    token = Token(1, "Hel", -0.1, top)
    unlikely = Token(2, "", float("-inf"), (), b"\xf0")
    events = [TextStarted(), TextDelta("Hel", "Hel", (token, unlikely)), TextEnded(), STOP]

    payloads = streamed(answering_to(**SCORED), events)

    wanted = [
        {
            "token": "Hel",
            "logprob": -0.1,
            "bytes": [72, 101, 108],
            "top_logprobs": [
                {"token": "Hel", "logprob": -0.1, "bytes": [72, 101, 108]},
                {"token": "�", "logprob": -3.0, "bytes": [240, 159]},
            ],
        },
        {"token": "�", "logprob": -9999.0, "bytes": [240], "top_logprobs": []},
    ]
    assert check(payloads)["output"][0]["content"][0]["logprobs"] == wanted
    [delta] = [json.loads(payload) for payload in payloads if b"text.delta" in payload]
    assert delta["logprobs"] == wanted


def test_unmet_demands_are_told() -> None:
    assert whole([*TEXT, Finished(FinishReason.STOP, USAGE, unmet=("no call",))])["unmet"] == ["no call"]
    assert "unmet" not in whole([*TEXT, STOP])


# The life of a response


def test_a_queued_response() -> None:
    waiting = answering_to(background=True)
    queued = waiting.queue()
    assert json.loads(waiting.body())["status"] == "queued"

    payloads = streamed(answering_to(background=True), [*TEXT, STOP])

    assert payloads[:2] == queued
    assert types(payloads)[:3] == ["created", "queued", "in_progress"]
    assert check(payloads)["background"] is True


def test_a_queued_response_that_begins_is_not_created_again() -> None:
    answering = answering_to(background=True)
    answering.queue()

    assert types(answering.begin()) == ["in_progress"]


def test_a_running_response_has_the_items_that_are_finished() -> None:
    answering = answering_to()
    answering.begin()
    answering.push([*THOUGHT, *TEXT[:2]])

    response = json.loads(answering.body())

    assert response["status"] == "in_progress"
    assert response["usage"] is None
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert [item.type for item in answering.items] == ["reasoning"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("It broke."), "server_error"),
        (EngineBusyError(), "rate_limit_exceeded"),
        (RequestError("No.", param="input"), "invalid_prompt"),
    ],
)
def test_a_failure_in_the_middle(error: Any, code: str) -> None:
    answering = answering_to()
    payloads = answering.begin() + answering.push(TEXT[:2]) + answering.fail(error)

    response = check(payloads)

    assert response["error"] == {"code": code, "message": error.message}
    assert response["output"][0]["status"] == "incomplete"
    told = json.loads(payloads[-2])
    assert told["message"] == told["error"]["message"] == error.message
    assert told["param"] == told["error"]["param"] == error.param


def test_a_response_that_failed_has_used_what_it_used() -> None:
    answering = answering_to()
    response = check(answering.begin() + answering.push(TEXT) + answering.fail(EngineError("It broke.")))

    assert response["usage"]["output_tokens"] == ABANDONED.completion_tokens
    assert response["output"][0]["status"] == "incomplete"


def test_a_response_that_failed_at_once_has_no_items() -> None:
    answering = answering_to()

    assert check(answering.begin() + answering.fail(EngineError()))["output"] == []


def test_an_end_that_could_not_be_stored_leaves_no_gap() -> None:
    answering = answering_to()
    payloads = answering.begin() + answering.push(TEXT)
    *closing, _ = answering.cancel()

    response = check(payloads + closing + answering.projection.fail(EngineError("It broke.")))

    assert response["status"] == answering.status == "failed"


def test_a_cancelled_response() -> None:
    answering = answering_to()
    payloads = answering.begin() + answering.push(TEXT[:2]) + answering.cancel()

    response = check(payloads)

    assert response["status"] == answering.status == "cancelled"
    assert response["output"][0]["status"] == "incomplete"


def test_a_conversation_that_was_summed_up_before() -> None:
    answering = answering_to()
    answering.projection.compacted({"encrypted_content": "…"}, 10, Usage(completion_tokens=2))

    response = check(streamed(answering, [*TEXT, STOP]))

    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    assert response["usage"]["input_tokens"] == 17
    assert response["usage"]["output_tokens"] == 7
    assert [item.type for item in answering.items] == ["compaction", "message"]


def test_a_compaction_alone_is_a_response() -> None:
    answering = answering_to()
    answering.projection.compacted({"encrypted_content": "…"}, 10, USAGE)

    response = check(answering.begin() + answering.finish())

    assert [item["type"] for item in response["output"]] == ["compaction"]
    assert response["status"] == "completed"


def test_ids_depend_on_the_response_alone() -> None:
    first, again = (whole([*THOUGHT, *TEXT, STOP])["output"] for _ in range(2))
    other = Answering(msgspec.structs.replace(accepted(), id="resp_2"))
    streamed(other, [*THOUGHT, *TEXT, STOP])

    ids = [item["id"] for item in first]
    assert ids == [item["id"] for item in again]
    assert [id_[:3] for id_ in ids] == ["rs_", "msg"]
    assert not set(ids) & {item.id for item in other.items}
