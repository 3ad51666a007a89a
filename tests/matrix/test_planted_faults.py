"""The matrix finds what it is made to find: each fault is planted on purpose, and some cases must show it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.apis.messages.resource import ToolUseBlock
from antiphon.apis.messages.stream import MessageStream
from antiphon.app import batch_endpoints
from antiphon.core.chunks import Finish
from antiphon.decode.event_builder import EventBuilder
from antiphon.run import bounded, model, token_model
from antiphon.run.call_filter import CallFilter
from antiphon.run.closing import ClosedGeneration
from tests.matrix.case import Case, cut_cases
from tests.matrix.play import faults_of

Plant = Callable[[pytest.MonkeyPatch], None]
FORCED = Case("glm45", choice="required")


def unsendable_parsers(patch: pytest.MonkeyPatch) -> None:
    """Functions that a decorator took are sent to other processes by a name that does not lead to them."""
    patch.setattr(bounded, "_is_named", lambda function: "<" not in function.__qualname__)


def streams_without_arguments(patch: pytest.MonkeyPatch) -> None:
    """A stream of Messages has no arguments of calls."""
    opened = MessageStream._open

    def open_(self: MessageStream, block: Any, delta: Any, out: list[bytes]) -> None:
        opened(self, block, delta, out)
        if isinstance(block, ToolUseBlock):
            self._frame = None

    patch.setattr(MessageStream, "_open", open_)


def markers_that_are_text(patch: pytest.MonkeyPatch) -> None:
    """A marker after an item is shown."""
    markup = EventBuilder.markup

    def shown(self: EventBuilder, raw: str) -> None:
        if self._open is None and self._provisional is None and raw.strip():
            self.insert_text(raw)
        else:
            markup(self, raw)

    patch.setattr(EventBuilder, "markup", shown)


def results_as_they_came(patch: pytest.MonkeyPatch) -> None:
    """Results are not put into the order of their calls."""
    for module in (model, token_model):
        patch.setattr(module, "pair_results", lambda items, repairs: items)


def calls_that_were_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """No call is hidden."""
    patch.setattr(CallFilter, "filter", lambda self, events: events)


def answers_that_are_cut_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """No answer is closed."""

    async def cut(self: ClosedGeneration, finish: Finish) -> None:
        self._end(self._held)

    patch.setattr(ClosedGeneration, "_close", cut)


PLANTED: list[tuple[Plant, list[Case], str]] = [
    (unsendable_parsers, [FORCED], "500"),
    (streams_without_arguments, [FORCED], "messages: the stream adds up to"),
    (markers_that_are_text, [FORCED], "it shows"),
    (results_as_they_came, [Case("glm45", history="parallel results")], "in another order"),
    (
        calls_that_were_not_asked_for,
        [Case("glm45", choice="allowed auto", obeys=False, text="unknown_function")],
        "not only",
    ),
    (answers_that_are_cut_in_the_middle, cut_cases("glm45"), "the model obeyed, but"),
]


@pytest.mark.parametrize(("plant", "shown", "what"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED])
async def test_a_planted_fault_is_found(
    plant: Plant, shown: list[Case], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await faults_of("glm45", shown) == []
    with monkeypatch.context() as patch:
        plant(patch)
        found = await faults_of("glm45", shown)
    assert any(what in str(fault) for fault in found), found


def without(field: str) -> Plant:
    """Lines of batches lose a field."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        answer = batch_endpoints.answer

        async def answered(app: Any, endpoint: str, body: bytes, *more: Any) -> bytes:
            fields = json.loads(body)
            fields.pop(field, None)
            return await answer(app, endpoint, json.dumps(fields).encode(), *more)

        patch.setattr(batch_endpoints, "answer", answered)

    return plant


@pytest.mark.parametrize(
    ("field", "case"),
    [("tools", Case("glm45", text="single")), ("response_format", Case("glm45", format="schema"))],
)
async def test_a_line_of_a_batch_that_loses_a_field_is_found(
    field: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await faults_of("glm45", [case], 1) == []
    without(field)(monkeypatch)
    found = await faults_of("glm45", [case], 1)
    assert any("a line of a batch" in str(fault) for fault in found), found
