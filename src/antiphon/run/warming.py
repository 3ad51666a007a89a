"""Prompts that are computed for later: the engine reads one, and the answer is empty.

Engines refuse to generate nothing, so one token is generated, which nobody sees. It waits behind answers.
What the engine keeps of the prompt is then there for requests that begin with it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.events import Event, Finished
from antiphon.core.turn import CallMode, ToolChoice
from antiphon.run.constraints import ConstraintPlan
from antiphon.run.drive import Output
from antiphon.run.model import Prepared
from antiphon.run.replay import ReplayContext

LATER = 1_000_000
"""The priority of such prompts: any answer comes first."""


class Warming:
    """The empty answer to a turn whose prompt is computed. One of the choices of an answer."""

    def __init__(self, prepared: Prepared) -> None:
        self._generation = _one_token(prepared).generation(0, ReplayContext(), Accumulator())

    async def run(self, output: Output, choice: int) -> None:
        """Have the engine read the prompt. Raises AntiphonError."""

        def emit(index: int, events: list[Event]) -> None:
            if end := _end(events):
                output.push(index, end)

        await self._generation.run(output, choice, emit)

    def steer(self) -> None:
        """It has no output, and ends by itself."""

    def abandon(self) -> list[Event]:
        """The end of one that failed."""
        return _end(self._generation.abandon())


def _one_token(prepared: Prepared) -> Prepared:
    """The same prompt, with one token after it: any, because nothing is demanded of it."""
    sampling = prepared.request.sampling
    waits = "priority" in prepared.engine.card.capabilities.sampling
    priority = max(sampling.priority or 0, LATER) if waits else sampling.priority
    plain = replace(sampling, max_tokens=1, min_tokens=None, logprobs=None, priority=priority)
    return replace(
        prepared,
        # A choice of calls, so that no text goes to the client beside the events.
        turn=replace(prepared.turn, tools=(), tool_choice=ToolChoice(CallMode.NONE)),
        request=replace(prepared.request, max_tokens=1, sampling=plain, constraint=None),
        plan=ConstraintPlan(),
        reasoning=None,
        on_end=None,
    )


def _end(events: Sequence[Event]) -> list[Event]:
    """The end of the answer, if it is among these events, without what was generated."""
    return [
        Finished(event.reason if event.reason is FinishReason.ERROR else FinishReason.STOP, usage)
        for event in events
        if isinstance(event, Finished)
        for usage in (replace(event.usage, completion_tokens=0, reasoning_tokens=0),)
    ]
