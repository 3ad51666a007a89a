"""The accumulator makes items of events, numbers them, and refuses to answer early."""

import pytest

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Finished,
    Malformed,
    Markup,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCallsPending,
    ToolResultReceived,
    Usage,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Message, Reasoning, Role, Status, TextPart
from antiphon.core.tool_result import ToolResult


def test_makes_items_in_order() -> None:
    items = Accumulator()
    for event in (
        ReasoningStarted(),
        ReasoningDelta("th", "th"),
        ReasoningDelta("ink", "ink"),
        ReasoningEnded(),
        Markup("</think>"),
        TextStarted(phase="final"),
        TextDelta("Hi", "Hi"),
        TextEnded(),
        Malformed("why"),
        CallStarted("id", "f"),
        ArgumentsDelta('{"a":', '{"a":'),
        ArgumentsDelta("1}", "1}"),
        CallEnded(complete=True),
        CallStarted("id2", "g"),
        CallEnded(complete=False),
        Finished(FinishReason.LENGTH, Usage(9, 2), None),
    ):
        items.push(event)

    output = items.output
    assert output.items == (
        Reasoning("think"),
        Message(Role.ASSISTANT, (TextPart("Hi"),), phase="final"),
        FunctionCall("id", "f", '{"a":1}'),
        FunctionCall("id2", "g", "", Status.INCOMPLETE),
    )
    assert (output.text, output.reasoning, len(output.calls)) == ("Hi", "think", 2)
    assert (output.reason, output.usage) == (FinishReason.LENGTH, Usage(9, 2))


def test_has_no_output_before_the_end() -> None:
    with pytest.raises(RuntimeError, match="finished"):
        _ = Accumulator().output


def test_events_that_concern_an_item_leave_with_its_number_and_the_last_with_the_item() -> None:
    events = [
        ReasoningStarted(),
        ReasoningDelta("hm", "hm"),
        ReasoningEnded(),
        CallStarted("id", "search", hosted=True),
        ArgumentsDelta("{}", "{}"),
        CallEnded(complete=True),
        ToolCallsPending(),
        ToolResultReceived("id", ToolResult("found")),
        TextStarted(),
        TextDelta("So", "So"),
        TextEnded(),
    ]
    accumulator = Accumulator()

    numbered = accumulator.extend(events)

    ends = [event for event in numbered if isinstance(event, ReasoningEnded | CallEnded | TextEnded)]
    assert [(end.index, end.item) for end in ends] == [
        (index, accumulator.items[index]) for index in (0, 1, 3)
    ]
    assert [event.index for event in numbered if isinstance(event, CallStarted | TextStarted)] == [1, 3]
    assert [event.index for event in numbered if isinstance(event, ToolResultReceived)] == [2]
    assert accumulator.items[2] == FunctionOutput("id", (TextPart("found"),))
    assert [type(event) for event in numbered] == [type(event) for event in events]


def test_text_of_deltas_may_be_added_without_a_call() -> None:
    accumulator = Accumulator()
    accumulator.push(TextStarted())
    accumulator.pieces.append("Hi")

    end = accumulator.push(TextEnded())

    assert isinstance(end, TextEnded)
    assert end.item == Message(Role.ASSISTANT, (TextPart("Hi"),))
    assert accumulator.pieces == []
