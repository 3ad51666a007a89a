"""How the answer of a model begins at once, without reasoning, so that its next token is the answer's first.

The chat template's own switch comes first: all variables by which templates turn reasoning off are set. A
block that a template opens nevertheless is closed, and one that the model would open itself is written
empty. In formats whose messages have headers, the header of the answer is completed.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from antiphon.core.errors import RequestError, UnsupportedModelError
from antiphon.core.grammar import Span, SpanKind, State
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.dialects.dialect import Dialect
from antiphon.render.renderer import Renderer

OFF: Mapping[str, Any] = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}
"""The variables by which templates turn reasoning off, besides the effort."""
ON: Mapping[str, Any] = {"enable_thinking": True, "thinking": True}
EFFORT: Mapping[str, Any] = {"reasoning_effort": "none"}
"""The least effort. Templates that cannot do without get the nearest that they take."""

_HELLO = Turn("", (Message(Role.USER, (TextPart("Hello"),)),))


class DirectAnswers:
    """Answers without reasoning of a model with this renderer and dialect.

    `reasons`: it may begin an answer with reasoning. `state_after` tells in which state of the dialect's
    grammar an answer is that begins after a prompt.
    """

    def __init__(
        self,
        renderer: Renderer,
        dialect: Dialect,
        *,
        reasons: bool,
        state_after: Callable[[str], State],
    ) -> None:
        self._renderer = renderer
        self._dialect = dialect
        self._reasons = reasons
        self._state_after = state_after

    @cached_property
    def variables(self) -> Mapping[str, Any]:
        """The variables that turn reasoning off, as far as the template does not refuse them."""
        options = ({**OFF, **EFFORT}, OFF, EFFORT)
        return next((option for option in options if self._rendered(option) is not None), {})

    @cached_property
    def _has_switch(self) -> bool:
        """These variables make a difference: the template does what its model needs."""
        on = {**self.variables, **ON}
        on.pop("thinking_budget", None)
        rendered = self._rendered(on)
        return rendered is not None and rendered != self._rendered(self.variables)

    def beginning(self, end: str) -> str:
        """What must follow a prompt with this end to begin the answer. Raises UnsupportedModelError."""
        text = "".join(self._steps(end))
        if not _is_text(self._state_after(end + text)):
            message = "The reasoning of this model cannot be turned off or closed, so it cannot decide. "
            raise UnsupportedModelError(message + "Name another model.", param="model")
        return text

    def _steps(self, end: str) -> Iterator[str]:
        dialect, state = self._dialect, self._state_after(end)
        if dialect.has_own_reasoning:
            if dialect.answer_start:
                yield _rest(end, dialect.answer_start) or ""
        elif _is_reasoning(state):
            yield dialect.reasoning_end or ""
        elif self._may_begin_reasoning(end):
            assert dialect.reasoning is not None
            yield f"{dialect.reasoning.opens[0]}\n{dialect.reasoning_end}"

    def _may_begin_reasoning(self, end: str) -> bool:
        reasoning = self._dialect.reasoning
        if reasoning is None or not self._reasons or self._has_switch:
            return False
        return not any(tag.strip() in end for tag in reasoning.closes)

    def _rendered(self, variables: Mapping[str, Any]) -> str | None:
        try:
            return self._renderer.render(Turn(_HELLO.model, _HELLO.items, variables=variables))
        except RequestError:
            return None


def _rest(end: str, answer_start: str) -> str | None:
    """What is missing of the start of an answer, if the end has written a part of it."""
    for size in range(min(len(end), len(answer_start)), 0, -1):
        place = answer_start.rfind(end[-size:])
        if place >= 0:
            return answer_start[place + size :]
    return None


def _is_reasoning(state: State) -> bool:
    return isinstance(state, Span) and state.kind is SpanKind.REASONING


def _is_text(state: State) -> bool:
    return isinstance(state, Span) and state.kind is SpanKind.TEXT
