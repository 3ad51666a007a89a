import pytest

from antiphon.core.chunks import FinishReason
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Markup,
    TextDelta,
    TextEnded,
    TextStarted,
    Usage,
)
from antiphon.core.turn import MAX_DEMANDED_CALLS, CallMode, ToolChoice
from antiphon.run.call_filter import CallFilter

TEXT: list[Event] = [TextStarted(), TextDelta("hi", "hi"), TextEnded()]
END = Finished(FinishReason.STOP, Usage(), raw="!")


def call(name: str) -> list[Event]:
    return [
        CallStarted(f"id_{name}", name, "<"),
        ArgumentsDelta("{}", "{}"),
        CallEnded(complete=True, raw=">"),
    ]


def seen(choice: ToolChoice, events: list[Event], *, at_once: bool) -> list[Event]:
    calls = CallFilter(choice)
    batches = [events] if at_once else [[event] for event in events]
    return [event for batch in batches for event in calls.filter(batch)]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        (ToolChoice(), [*TEXT, *call("a"), *call("b"), *TEXT]),
        (ToolChoice(CallMode.NONE), [*TEXT, *TEXT]),
        (ToolChoice(names=frozenset({"b"})), [*TEXT, *call("b"), *TEXT]),
        (ToolChoice(parallel=False), [*TEXT, *call("a")]),
        (ToolChoice(CallMode.REQUIRED, frozenset({"a", "b"}), named=True), [*TEXT, *call("a")]),
        (ToolChoice(CallMode.REQUIRED), [*TEXT, *call("a"), *call("b"), *TEXT]),
        (ToolChoice(names=frozenset({"b"}), parallel=False), [*TEXT, *call("b")]),
    ],
)
def test_a_client_sees_what_it_asked_for(choice: ToolChoice, shown: list[Event], at_once: bool) -> None:
    said: list[Event] = [*TEXT, *call("a"), *call("b"), *TEXT, END]

    events = seen(choice, said, at_once=at_once)

    assert [event for event in events if not isinstance(event, Markup)] == [*shown, END]
    assert "".join(event.raw for event in events) == "".join(event.raw for event in said)


def test_a_model_that_must_call_repeats_itself_so_often_only() -> None:
    calls, repeated = CallFilter(ToolChoice(CallMode.REQUIRED)), [*call("a") * (MAX_DEMANDED_CALLS + 5), END]

    events = calls.filter(repeated)

    assert calls.limit_reached
    assert sum(isinstance(event, CallEnded) for event in events) == MAX_DEMANDED_CALLS
    assert events[-1] is END


def test_a_single_call_is_over_when_it_ends() -> None:
    calls = CallFilter(ToolChoice(parallel=False))
    *most, last = call("a")
    calls.filter([*TEXT, *most])
    assert not calls.limit_reached
    calls.filter([last])
    assert calls.limit_reached
