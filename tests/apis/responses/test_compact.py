"""Compaction: the request to the model, and the items that replace the conversation."""

import json

import pytest

from antiphon.apis import wire
from antiphon.apis.responses.accept import ResponseContext
from antiphon.apis.responses.compact import (
    AcceptedCompaction,
    accept_compact,
    compaction_body,
    compaction_fields,
)
from antiphon.apis.responses.schema import CompactRequest
from antiphon.apis.summaries import SUMMARY_INTRODUCTION, SUMMARY_REQUEST, SummaryMessage, summary_turn
from antiphon.core.errors import RequestError
from antiphon.core.events import Usage
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import PromptEnding, Sampling, ToolChoice
from tests.apis.responses.support import CREATED, OWNER, SEALER, accepted, answering_to, unseal
from tests.openai_schema import OPEN_RESPONSES, validate
from tests.response_invariants import check

CONVERSATION = [
    {"role": "user", "content": "What is the weather?"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
    {"role": "assistant", "content": "Sunny."},
]


def seal(text: str) -> str:
    return SEALER.seal(OWNER, text)


def compacting() -> AcceptedCompaction:
    body = json.dumps({"model": "m", "input": CONVERSATION, "instructions": "Be kind."}).encode()
    history = [item.payload for item in accepted(input="Hello").items]
    context = ResponseContext("cmp_1", OWNER, history, unseal=unseal)
    return accept_compact(wire.decode(body, CompactRequest), context)


def test_the_model_is_asked_to_sum_up() -> None:
    turn = compacting().turn

    assert len(turn.items) == 7
    assert turn.items[0] == Message(Role.SYSTEM, (TextPart("Be kind."),))
    assert turn.items[-1] == Message(Role.USER, (TextPart(SUMMARY_REQUEST),))


def test_summing_up_is_not_bound_by_what_the_answer_is_bound_by() -> None:
    turn = accepted(
        tools=[{"type": "function", "name": "f"}],
        tool_choice="required",
        text={"format": {"type": "json_object"}},
        max_output_tokens=5,
        stop="a",
        input=[{"role": "assistant", "status": "incomplete", "content": "a"}],
    ).turn

    asked = summary_turn(turn)

    assert (asked.tools, asked.tool_choice, asked.format) == ((), ToolChoice(), None)
    assert (asked.sampling, asked.stop, asked.ending) == (Sampling(), (), PromptEnding.ANSWER)


def test_a_compacted_conversation_can_be_gone_on_with() -> None:
    fields = compaction_fields("It was sunny.", seal)

    body = json.loads(compaction_body(compacting(), fields, CREATED, 5, Usage(completion_tokens=3)))

    validate("CompactResource", body, OPEN_RESPONSES)
    assert [item["type"] for item in body["output"]] == ["message", "message", "compaction"]
    assert body["usage"]["total_tokens"] == 8
    assert accepted(input=body["output"]).turn.items == (
        Message(Role.USER, (TextPart("Hello"),)),
        Message(Role.USER, (TextPart("What is the weather?"),)),
        SummaryMessage(Role.USER, (TextPart(SUMMARY_INTRODUCTION + "It was sunny."),)),
    )


def test_a_response_may_begin_with_a_compaction() -> None:
    answering = answering_to(context_management=[{"type": "compaction", "compact_threshold": 1000}])
    answering.projection.compacted(compaction_fields("We met.", seal), 5, Usage())

    response = check(answering.begin() + answering.finish())

    [item] = response["output"]
    assert unseal(item["encrypted_content"]) == "We met."


@pytest.mark.parametrize("missing", ["model", "input"])
def test_what_is_missing_is_named(missing: str) -> None:
    body = {"model": "m", "input": "a"}
    del body[missing]

    with pytest.raises(RequestError) as caught:
        accept_compact(
            wire.decode(json.dumps(body).encode(), CompactRequest), ResponseContext("cmp_1", OWNER)
        )

    assert caught.value.param == missing
