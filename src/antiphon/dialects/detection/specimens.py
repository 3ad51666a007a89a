"""Samples of a model's handwriting: answers as its chat template writes them down.

A template that shows earlier answers writes them the way its model does. So a
known answer is rendered, and what it adds to the prompt is a `Specimen`: text
of which it is known what it means. It begins where a model would begin, behind
what the template writes before every answer.

What a template does not show (thoughts, text beside calls) is not expected of
its specimens. Nothing is known here of any dialect.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.errors import RequestError
from antiphon.core.items import (
    FunctionCall,
    FunctionOutput,
    Item,
    Message,
    OutputItem,
    Reasoning,
    Role,
    TextPart,
)
from antiphon.core.turn import Function, Turn
from antiphon.render.renderer import ChatTemplateRenderer

_ASKED = Message(Role.USER, (TextPart("How high is the tide?"),))
_RETURNED = "walnut ridge"

TEXT = Message(Role.ASSISTANT, (TextPart("The silver reed stands still."),))
THOUGHT = Reasoning("A violet marsh comes to mind.")
TIDE = FunctionCall("tide00001", "read_tide", json.dumps({"harbour": "Port Louis"}))
BOATS = FunctionCall(
    "boats0002",
    "count_boats",
    json.dumps({"limit": 12, "exact": True, "river": "Oka", "kinds": ["skiff"]}),
)

PROBES: Mapping[str, tuple[OutputItem, ...]] = {
    "text": (TEXT,),
    "thought and text": (THOUGHT, TEXT),
    "call": (TIDE,),
    "other call": (BOATS,),
    "two calls": (TIDE, BOATS),
    "text and call": (TEXT, TIDE),
    "thought and call": (THOUGHT, TIDE),
}
"""Answers that are rendered, by what they are called in reports."""


def _typed(name: str, **more: Any) -> Mapping[str, Any]:
    return {"type": name, "description": "Which.", **more}  # some templates insist on descriptions


def _parameters(**types: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": types, "required": list(types)}


FUNCTIONS = (
    Function("read_tide", "Tells how high the tide is.", _parameters(harbour=_typed("string"))),
    Function(
        "count_boats",
        "Counts boats.",
        _parameters(
            limit=_typed("integer"),
            exact=_typed("boolean"),
            river=_typed("string"),
            kinds=_typed("array", items={"type": "string"}),
        ),
    ),
)
SCHEMAS = {function.name: function.parameters for function in FUNCTIONS}

THINKING: Sequence[Mapping[str, Any]] = (
    {},
    {"enable_thinking": True, "thinking": True},
    {"enable_thinking": False, "thinking": False},
)
"""The ways to ask a template for thoughts, and for none. What it does not know it ignores."""


class Specimen(Struct, frozen=True):
    """An answer as a template writes it: `written` means `items`.

    `opening` is what the template writes before a new answer. `written` may go on
    from it, or from its first part only, if an earlier answer is written
    differently from how a new one begins.
    """

    name: str
    items: tuple[OutputItem, ...]
    opening: str
    written: str

    @property
    def calls(self) -> bool:
        """Some function is called."""
        return any(isinstance(item, FunctionCall) for item in self.items)

    def behind(self, header: str) -> str:
        """What is written after this beginning of the opening, or else after all that they share."""
        if self.written.startswith(header):
            return self.written[len(header) :]
        return self.written[len(_shared(self.opening, self.written)) :]


class Specimens(Struct, frozen=True):
    """All answers that a template shows, and what it writes before new ones, with thoughts and without."""

    answers: tuple[Specimen, ...]
    openings: tuple[str, ...]

    @property
    def written(self) -> str:
        """All that the template wrote."""
        return "\n".join(each.written for each in self.answers)

    @property
    def calls(self) -> tuple[Specimen, ...]:
        """Answers with calls."""
        return tuple(each for each in self.answers if each.calls)


def collect(renderer: ChatTemplateRenderer) -> Specimens:
    """Render every probe with the template, in each way of thinking, without repetition."""
    found: dict[tuple[str, str], Specimen] = {}
    openings: dict[str, None] = {}
    for variables in THINKING:
        desk = _Desk(renderer, variables)
        openings[desk.opening] = None
        for name, items in PROBES.items():
            for specimen in desk.write(name, items):
                found[specimen.opening, specimen.written] = specimen
    return Specimens(tuple(found.values()), tuple(filter(None, openings)))


def specimens_of(
    renderer: ChatTemplateRenderer, items: tuple[OutputItem, ...], functions: Sequence[Function] = FUNCTIONS
) -> list[Specimen]:
    """This answer as the template writes it, or nothing if it cannot."""
    return list(_Desk(renderer, {}, functions).write("asked", items))


class _Desk:
    """Renders with one template and one set of variables."""

    def __init__(
        self,
        renderer: ChatTemplateRenderer,
        variables: Mapping[str, Any],
        functions: Sequence[Function] = FUNCTIONS,
    ) -> None:
        self._renderer = renderer
        self._variables = variables
        self._functions = tuple(functions) if renderer.traits.tools else ()
        # Some templates begin an answer, or end the conversation, even in a transcript.
        shared = _shared(self._transcript(_ASKED), self._transcript(_ASKED, TEXT))
        self._asked = _shared(shared, self._transcript(_ASKED, TIDE)) if renderer.traits.calls else shared
        prompt = self._rendered(_ASKED)
        self.opening = prompt[len(self._asked) :] if prompt.startswith(self._asked) else ""
        self._tail = self._answer(TEXT).rpartition(TEXT.text)[2]

    def write(self, name: str, items: tuple[OutputItem, ...]) -> Iterator[Specimen]:
        """The specimen, if the template can show one."""
        calls = [item for item in items if isinstance(item, FunctionCall)]
        if calls and not self._takes(items, calls):
            return
        written = self._answer(*items)
        if calls and not all(call.name in written for call in calls):
            written = self._answered(items, calls)
        shown = [item for item in items if _mark(item) in written]
        shown.sort(key=lambda item: written.find(_mark(item)))
        several = TEXT in shown and calls and self._ends_turn(written)
        if shown and all(call in shown for call in calls) and not several:
            yield Specimen(name, tuple(shown), self.opening, written.removesuffix(self._tail))

    def _takes(self, items: Sequence[OutputItem], calls: Sequence[FunctionCall]) -> bool:
        traits = self._renderer.traits
        beside_text = traits.text_with_calls or TEXT not in items
        return traits.calls and beside_text and (traits.parallel or len(calls) == 1)

    def _ends_turn(self, written: str) -> bool:
        """A turn ends inside: what was one answer became several messages."""
        return bool(self._tail.strip()) and self._tail.strip() in written.removesuffix(self._tail)

    def _answer(self, *items: Item) -> str:
        """What an answer adds to the conversation."""
        text = self._transcript(_ASKED, *items)
        return text[len(_shared(self._asked, text)) :]

    def _answered(self, items: Sequence[Item], calls: Sequence[FunctionCall]) -> str:
        """The same, for templates that show calls only with their results."""
        results = [FunctionOutput(call.call_id, (TextPart(_RETURNED),)) for call in calls]
        return self._answer(*items, *results).partition(_RETURNED)[0]

    def _transcript(self, *items: Item) -> str:
        return _attempt(self._renderer.transcript, self._turn(items))

    def _rendered(self, *items: Item) -> str:
        return _attempt(self._renderer.render, self._turn(items))

    def _turn(self, items: Sequence[Item]) -> Turn:
        return Turn("", tuple(items), self._functions, variables=self._variables)


def common(first: str, *others: str) -> str:
    """The beginning that all texts share."""
    end = min(map(len, (first, *others)))
    return first[: next((n for n in range(end) if any(text[n] != first[n] for text in others)), end)]


def _shared(text: str, other: str) -> str:
    """The beginning that two texts share, without the first half of a tag or word."""
    shared = common(text, other)
    return shared if shared in (text, other) else _WHOLE.sub("", shared)


_WHOLE = re.compile(r"[^\n>\]]*\Z")


def _attempt(render: Any, turn: Turn) -> str:
    """The text, or "" if the template refuses."""
    try:
        return str(render(turn))
    except RequestError:
        return ""


def _mark(item: OutputItem) -> str:
    return item.name if isinstance(item, FunctionCall) else item.text
