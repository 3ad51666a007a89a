"""Laws of all streams, for any output of models: the answers of all dialects, cut anywhere."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.apis.responses.output.reasoning import RAW_OPEN_RESPONSES
from antiphon.apis.responses.progress import output_so_far
from antiphon.apis.responses.stored import unpack
from antiphon.core.chunks import Finish, FinishReason
from antiphon.core.errors import EngineError
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
)
from antiphon.dialects.registry import DIALECTS
from tests.apis.responses.support import Answering, answering_to, batches, streamed
from tests.apis.responses.test_stream import (
    CALL,
    CUSTOM,
    SCORED,
    SEALED,
    SPACED,
    STOP,
    SUMMARISED,
    TEXT,
    THOUGHT,
    whole,
)
from tests.contracts.dialect import CASES, TOOLS, answers, table_of
from tests.laws import cut, cuts, decode
from tests.openai_schema import validate_event
from tests.response_invariants import check, items_so_far
from tests.search import examples

SDK_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
ODD = [
    "a",
    " ",
    '"',
    '\\"',
    "\\u0041",
    "\n\r\t",
    "\x00\x1f\x7f",
    "é",
    "👋🏽🌍",
    "\u2028",
    "data: [DONE]\n\n",
    "x" * 9999,
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_frequent_events_are_those_of_the_wire_types(text: str) -> None:
    said = [TextStarted(), TextDelta(text, text), TextEnded()]
    thought = [ReasoningStarted(), ReasoningDelta(text, text), ReasoningEnded()]
    called = [CallStarted("call_1", text), ArgumentsDelta(text, text), CallEnded(complete=False)]

    output = whole([*said, *thought, *called, STOP], model=text[:256])["output"]

    assert output[0]["content"][0]["text"] == output[1]["content"][0]["text"] == text
    assert output[2]["name"] == output[2]["arguments"] == text


OPTIONS = [{}, SUMMARISED, SCORED, SEALED, SPACED, CUSTOM, {"include_reasoning": False}]
REAL = [
    (dialect, answer)
    for dialect in DIALECTS
    for case in CASES
    if "output" in (answer := answers(dialect.names[0])[case])
]
CASE = st.sampled_from(REAL)


def events_of(case: tuple[Any, dict[str, Any]], places: Sequence[int], finish: str | None) -> list[Event]:
    dialect, answer = case
    reason = FinishReason(finish or answer.get("finish", "stop"))
    options = {"tools": TOOLS, "state": answer.get("state")}
    return decode(table_of(dialect.names[0]), cut(answer["output"], places), Finish(reason), **options)


@settings(max_examples=examples(150))
@given(CASE, cuts, st.sampled_from([None, "length"]), st.sampled_from(OPTIONS), st.integers(1, 9))
def test_every_stream_of_a_real_answer_is_sound(
    case: Any, places: list[int], finish: str | None, options: dict[str, Any], size: int
) -> None:
    events = events_of(case, places, finish)
    raw = {"raw_reasoning": RAW_OPEN_RESPONSES}
    whole_stream = streamed(answering_to(raw, **options), events)
    answering = answering_to(raw, **options)

    payloads = streamed(answering, events, size=size)

    assert payloads == whole_stream, "the same events in other batches, pushed again"
    check(payloads)
    shown = sum(places) % len(payloads)
    so_far = json.loads(msgspec.json.encode(output_so_far(payloads[:shown])))
    assert so_far == items_so_far(payloads[:shown])
    tokens = [token.id for event in events for token in event.tokens]
    assert [id_ for item in answering.items for id_ in unpack(item.tokens)] == tokens
    for payload in payloads:
        if "tools" not in options:  # Open Responses has functions only
            validate_event(payload)


@settings(max_examples=examples(60))
@given(CASE, st.sampled_from(OPTIONS))
def test_the_sdk_knows_every_event(case: Any, options: dict[str, Any]) -> None:
    for payload in streamed(answering_to(**options), events_of(case, [5, 9, 20], None)):
        assert SDK_EVENT.validate_json(payload).type == json.loads(payload)["type"]


@settings(max_examples=examples(60))
@given(CASE, cuts, st.data())
def test_a_stream_may_end_anywhere(case: Any, places: list[int], data: st.DataObject) -> None:
    events = events_of(case, places, None)
    answering = answering_to()
    payloads = answering.begin()
    for batch in batches(events[: data.draw(st.integers(0, len(events)))], 3):
        payloads += answering.push(batch)
    how = data.draw(st.sampled_from([Answering.cancel, lambda self: self.fail(EngineError())]))

    check(payloads + how(answering))


# The checker


@pytest.mark.parametrize("gone", range(2, 20))
def test_a_stream_without_one_of_its_events_is_found_out(gone: int) -> None:
    payloads = streamed(answering_to(), [*THOUGHT, *TEXT, *CALL, STOP])
    rest = [json.loads(payload) for payload in payloads[:gone] + payloads[gone + 1 :]]
    mended = [json.dumps(event | {"sequence_number": number}).encode() for number, event in enumerate(rest)]

    with pytest.raises(AssertionError):
        check(payloads[:gone] + payloads[gone + 1 :])
    with pytest.raises(AssertionError):
        check(mended)


def test_the_rest_of_a_stream_can_be_checked() -> None:
    payloads = streamed(answering_to(), [*THOUGHT, *TEXT, STOP])

    assert check(payloads[5:], after=4) == check(payloads)
    with pytest.raises(AssertionError):
        check(payloads[5:], after=3)
