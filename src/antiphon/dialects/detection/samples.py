"""Probe samples: known answers, rendered by a model's chat template.

A template renders earlier answers the way its model writes them. So a known answer is rendered, and its
addition to the prompt is a `ProbeSample`: text whose meaning is known. It starts where a model would start,
after the generation prompt. Parts that a template does not render (reasoning, text in addition to calls) are
left out of the expected items. This module does not depend on dialects.
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

_QUESTION = Message(Role.USER, (TextPart("How high is the tide?"),))
_RESULT = "walnut ridge"

TEXT = Message(Role.ASSISTANT, (TextPart("The silver reed stands still."),))
REASONING = Reasoning("A violet marsh comes to mind.")
CALL = FunctionCall("tide00001", "read_tide", json.dumps({"harbour": "Port Louis"}))
OTHER_CALL = FunctionCall(
    "boats0002",
    "count_boats",
    json.dumps({"limit": 12, "exact": True, "river": "Oka", "kinds": ["skiff"]}),
)

PROBES: Mapping[str, tuple[OutputItem, ...]] = {
    "text": (TEXT,),
    "reasoning and text": (REASONING, TEXT),
    "call": (CALL,),
    "other call": (OTHER_CALL,),
    "two calls": (CALL, OTHER_CALL),
    "text and call": (TEXT, CALL),
    "reasoning and call": (REASONING, CALL),
}
"""Answers that are rendered, by their names in reports."""


def _typed(name: str, **more: Any) -> Mapping[str, Any]:
    return {"type": name, "description": "Which.", **more}  # some templates fail without descriptions


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

REASONING_VARIABLES: Sequence[Mapping[str, Any]] = (
    {},
    {"enable_thinking": True, "thinking": True},
    {"enable_thinking": False, "thinking": False},
)
"""The template variables that turn reasoning on and off. A template ignores those it does not know."""


class ProbeSample(Struct, frozen=True):
    """An answer as a template renders it: `written` must decode to `items`.

    `generation_prompt` is what the template writes before a new answer. `written`
    starts with it, or with its first part only, if a template renders earlier
    answers differently from the start of a new one.
    """

    name: str
    items: tuple[OutputItem, ...]
    generation_prompt: str
    written: str

    @property
    def calls(self) -> bool:
        """Whether the answer has calls."""
        return any(isinstance(item, FunctionCall) for item in self.items)

    def text_after(self, header: str) -> str:
        """The text after `header`, a start of the generation prompt, or else after the shared start."""
        if self.written.startswith(header):
            return self.written[len(header) :]
        return self.written[len(_shared(self.generation_prompt, self.written)) :]


class ProbeSamples(Struct, frozen=True):
    """All answers that a template renders, and its generation prompts with reasoning on and off."""

    answers: tuple[ProbeSample, ...]
    generation_prompts: tuple[str, ...]

    @property
    def written(self) -> str:
        """All rendered answers."""
        return "\n".join(sample.written for sample in self.answers)

    @property
    def calls(self) -> tuple[ProbeSample, ...]:
        """Answers with calls."""
        return tuple(sample for sample in self.answers if sample.calls)


def collect_samples(renderer: ChatTemplateRenderer) -> ProbeSamples:
    """Render every probe with the template, with reasoning on and off, without duplicates."""
    unique: dict[tuple[str, str], ProbeSample] = {}
    generation_prompts: dict[str, None] = {}
    for variables in REASONING_VARIABLES:
        samples = _SampleRenderer(renderer, variables)
        generation_prompts[samples.generation_prompt] = None
        for name, items in PROBES.items():
            for sample in samples.render(name, items):
                unique[sample.generation_prompt, sample.written] = sample
    return ProbeSamples(tuple(unique.values()), tuple(filter(None, generation_prompts)))


def samples_of(
    renderer: ChatTemplateRenderer, items: tuple[OutputItem, ...], functions: Sequence[Function] = FUNCTIONS
) -> list[ProbeSample]:
    """This answer as the template renders it, or nothing if it cannot."""
    return list(_SampleRenderer(renderer, {}, functions).render("asked", items))


class _SampleRenderer:
    """Renders with one template and one set of variables."""

    def __init__(
        self,
        renderer: ChatTemplateRenderer,
        variables: Mapping[str, Any],
        functions: Sequence[Function] = FUNCTIONS,
    ) -> None:
        self._renderer = renderer
        self._variables = variables
        self._functions = tuple(functions) if renderer.capabilities.tools else ()
        # Some templates open an answer, or close the conversation, without a generation prompt, too.
        shared = _shared(self._transcript(_QUESTION), self._transcript(_QUESTION, TEXT))
        self._question = (
            _shared(shared, self._transcript(_QUESTION, CALL)) if renderer.capabilities.calls else shared
        )
        prompt = self._rendered(_QUESTION)
        self.generation_prompt = prompt[len(self._question) :] if prompt.startswith(self._question) else ""
        self._tail = self._answer(TEXT).rpartition(TEXT.text)[2]

    def render(self, name: str, items: tuple[OutputItem, ...]) -> Iterator[ProbeSample]:
        """The sample, if the template can render one."""
        calls = [item for item in items if isinstance(item, FunctionCall)]
        if calls and not self._supports(items, calls):
            return
        written = self._answer(*items)
        if calls and not all(call.name in written for call in calls):
            written = self._answer_with_results(items, calls)
        visible = [item for item in items if _marker_text(item) in written]
        visible.sort(key=lambda item: written.find(_marker_text(item)))
        several = TEXT in visible and calls and self._ends_turn(written)
        if visible and all(call in visible for call in calls) and not several:
            yield ProbeSample(name, tuple(visible), self.generation_prompt, written.removesuffix(self._tail))

    def _supports(self, items: Sequence[OutputItem], calls: Sequence[FunctionCall]) -> bool:
        capabilities = self._renderer.capabilities
        beside_text = capabilities.text_with_calls or TEXT not in items
        return capabilities.calls and beside_text and (capabilities.parallel_calls or len(calls) == 1)

    def _ends_turn(self, written: str) -> bool:
        """Whether the template split the answer into several messages."""
        return bool(self._tail.strip()) and self._tail.strip() in written.removesuffix(self._tail)

    def _answer(self, *items: Item) -> str:
        """The text of an answer in the conversation."""
        text = self._transcript(_QUESTION, *items)
        return text[len(_shared(self._question, text)) :]

    def _answer_with_results(self, items: Sequence[Item], calls: Sequence[FunctionCall]) -> str:
        """The same, for templates that render calls only with their results."""
        results = [FunctionOutput(call.call_id, (TextPart(_RESULT),)) for call in calls]
        return self._answer(*items, *results).partition(_RESULT)[0]

    def _transcript(self, *items: Item) -> str:
        return _attempt(self._renderer.transcript, self._turn(items))

    def _rendered(self, *items: Item) -> str:
        return _attempt(self._renderer.render, self._turn(items))

    def _turn(self, items: Sequence[Item]) -> Turn:
        return Turn("", tuple(items), self._functions, variables=self._variables)


def common(first: str, *others: str) -> str:
    """The longest common prefix."""
    end = min(map(len, (first, *others)))
    return first[: next((n for n in range(end) if any(text[n] != first[n] for text in others)), end)]


def _shared(text: str, other: str) -> str:
    """The longest common prefix of two texts, cut back to the end of a tag or line."""
    shared = common(text, other)
    return shared if shared in (text, other) else _PARTIAL.sub("", shared)


_PARTIAL = re.compile(r"[^\n>\]]*\Z")


def _attempt(render: Any, turn: Turn) -> str:
    """The text, or "" if the template raises."""
    try:
        return str(render(turn))
    except RequestError:
        return ""


def _marker_text(item: OutputItem) -> str:
    return item.name if isinstance(item, FunctionCall) else item.text
