"""The fold makes items of events, and refuses to answer early."""

import pytest

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
    Usage,
)
from antiphon.core.fold import Fold
from antiphon.core.items import FunctionCall, Message, Reasoning, Role, Status, TextPart


def test_makes_items_in_order() -> None:
    fold = Fold()
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
        fold.push(event)

    output = fold.output
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
        _ = Fold().output
