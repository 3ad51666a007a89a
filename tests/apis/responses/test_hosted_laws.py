"""What holds for every answer in which the server's tools were called, however its events are cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.apis.responses.stored import unpack
from antiphon.core.errors import EngineError
from antiphon.core.events import (
    CallEnded,
    Event,
    Markup,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCallsPending,
    ToolPrinted,
    ToolResultReceived,
)
from antiphon.core.tool_result import ToolResult
from tests.apis.responses.hosted import (
    BROKEN,
    FOUND,
    LOGPROB_COPIES,
    OPENED,
    PRINTED,
    RAN,
    SEARCHED,
    SOUND,
    SOURCED,
    TIMED_OUT,
    answering_with_tools,
    call,
    checked,
    numbered,
)
from tests.apis.responses.support import Answering, batches, streamed
from tests.apis.responses.test_stream import CALL, LENGTH, STOP, TEXT, THOUGHT
from tests.openai_schema import OPENAI_RESPONSES, validate
from tests.response_invariants import check
from tests.search import examples

OUTCOMES = st.sampled_from([PRINTED, SEARCHED, OPENED, FOUND, RAN, TIMED_OUT, BROKEN, ToolResult("")])
PRINTED_TEXT = st.sampled_from(["", "4", "42\n", "a", "\n", "é"])
"""Output of programs: some results begin with it, the server that streamed the others has crashed."""
SAID = st.sampled_from(
    [TEXT, THOUGHT, [Markup("~")], [TextStarted("commentary"), TextDelta("é", "é"), TextEnded()]]
)
OPTIONS = st.sampled_from(
    [{}, SOURCED, LOGPROB_COPIES, {"include_reasoning": False}, {"reasoning": {"summary": "auto"}}]
)


@st.composite
def generations(draw: st.DrawFn) -> list[Event]:
    """The events of an answer of some generations."""
    events: list[Event] = []
    for generation in range(draw(st.integers(0, 3))):
        asked = draw(st.lists(st.sampled_from(list(SOUND)), min_size=1, max_size=4))
        for number, name in enumerate(asked):
            events += draw(SAID)
            events += call(f"{generation}.{number}", name, broken=draw(st.booleans()))
        events.append(ToolCallsPending())
        for number in range(len(asked)):
            whole = [call for call in events if isinstance(call, CallEnded)][number - len(asked)].complete
            if whole:
                texts = draw(st.lists(st.tuples(PRINTED_TEXT, PRINTED_TEXT).filter(any), max_size=3))
                events += [ToolPrinted(f"{generation}.{number}", *text) for text in texts]
            events.append(ToolResultReceived(f"{generation}.{number}", draw(OUTCOMES)))
    last = [draw(SAID), call("last", draw(st.sampled_from(list(SOUND))), broken=True), CALL, []]
    cut = draw(st.sampled_from(last))
    return numbered([*events, *draw(SAID), *cut, LENGTH if cut is last[1] else STOP])


@settings(max_examples=examples(40))
@given(generations(), st.integers(1, 9), OPTIONS)
def test_every_stream_is_sound_however_its_events_are_cut(
    events: list[Event], size: int, options: dict[str, Any]
) -> None:
    answering = answering_with_tools(**options)
    payloads = streamed(answering, events, size=size)

    assert payloads == streamed(answering_with_tools(**options), events), "the same events in other batches"
    response = checked(payloads)
    assert [json.loads(item.payload) for item in answering.items] == response["output"]
    wanted = [token.id for event in events for token in event.tokens]
    assert [id_ for item in answering.items for id_ in unpack(item.tokens)] == wanted


@settings(max_examples=examples(40))
@given(generations(), st.data())
def test_a_stream_may_end_anywhere(events: list[Event], data: st.DataObject) -> None:
    answering = answering_with_tools()
    payloads = answering.begin()
    for batch in batches(events[: data.draw(st.integers(0, len(events)))], 3):
        payloads += answering.push(batch)
        validate("Response", answering.body(), OPENAI_RESPONSES)
    how = data.draw(st.sampled_from([Answering.cancel, lambda self: self.fail(EngineError())]))

    checked(payloads + how(answering))


# The checker

SEVERAL = streamed(
    answering_with_tools(),
    [
        *(
            *call("a", "python"),
            *call("b", "browser.search"),
            *call("c", "container.exec"),
            ToolCallsPending(),
        ),
        *(
            ToolResultReceived("a", PRINTED),
            ToolResultReceived("b", SEARCHED),
            ToolResultReceived("c", RAN),
            STOP,
        ),
    ],
)


@pytest.mark.parametrize("gone", range(2, len(SEVERAL) - 1))
def test_a_stream_without_one_of_its_events_is_found_out(gone: int) -> None:
    rest = [json.loads(payload) for payload in SEVERAL[:gone] + SEVERAL[gone + 1 :]]
    mended = [json.dumps(event | {"sequence_number": number}).encode() for number, event in enumerate(rest)]

    check(SEVERAL)
    with pytest.raises(AssertionError):
        check(mended)
