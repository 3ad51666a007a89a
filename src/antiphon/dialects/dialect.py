"""The type of dialects.

A dialect is data: how a family writes its calls and its reasoning, which rule its call ids follow, and how
tools are described to a model whose chat template ignores them.
"""

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.errors import EngineError
from antiphon.core.grammar import Grammar, ReasoningMarkers, Space, Span, SpanKind
from antiphon.decode.ids import IdRule, openai_call_id
from antiphon.dialects.call_formats import CallFormat
from antiphon.render.renderer import Renderer
from antiphon.render.tool_prompt import ToolPrompt

TEXT = Grammar({"text": Span(SpanKind.TEXT)})
"""Everything that the model writes is visible text."""

_GAP = "\n\n"
"""What templates render between reasoning and text."""

RendererMaker = Callable[[str | None], Renderer]
"""Makes a renderer for prompts of this date (`2026-11-21`), None for today's."""


class Dialect(Struct, frozen=True):
    """How a model family writes.

    `names` are the option's values; the first is the canonical one. `calls` is the grammar of everything but
    reasoning between tags, which are `reasoning`. A family whose reasoning is part of its grammar has None
    here. `answer_start` is the text that ends reasoning and starts the answer, if a closing tag alone is not
    enough; `call_start` is the part of it that may also begin a call. `suffix` is a pattern whose group
    finds, in rendered text, the suffix that a checkpoint adds to each of its tags. `renderer` makes the
    renderer of a family whose prompts need more than a chat template.
    `call_format` is the short form of `calls`, if they were made from one.
    """

    names: tuple[str, ...]
    calls: Grammar = TEXT
    reasoning: ReasoningMarkers | None = None
    ids: IdRule = openai_call_id
    tool_prompt: ToolPrompt | None = None
    answer_start: str | None = None
    call_start: str | None = None
    suffix: str | None = None
    renderer: RendererMaker | None = None
    call_format: CallFormat | None = None

    @property
    def grammar(self) -> Grammar:
        """The whole grammar."""
        return self.calls.with_reasoning(self.reasoning) if self.reasoning else self.calls

    @property
    def reasoning_end(self) -> str | None:
        """The text that ends reasoning and starts the answer; None if the family has no reasoning."""
        if self.answer_start or self.reasoning is None:
            return self.answer_start
        text = self.calls.states[self.calls.text]
        # Space after the tag is part of the text.
        spaced = isinstance(text, Span) and text.space is Space.TEXT
        return f"\n{self.reasoning.closes[0]}{'' if spaced else _GAP}"

    @property
    def reasoning_end_before_call(self) -> str | None:
        """The same where a call has to follow."""
        return self.call_start or self.reasoning_end

    def with_tag_suffix(self, rendered: str) -> "Dialect":
        """This dialect with the suffix that its tags have in `rendered`, if they have one."""
        match = re.search(self.suffix, rendered) if self.suffix else None
        if match is None:
            return self

        def rename(marker: str) -> str:
            return f"{marker[:-1]}{match[1]}>"

        return self.map_markers(rename)

    def map_markers(self, rename: Callable[[str], str]) -> "Dialect":
        """The same in other markers."""
        reasoning = self.reasoning and self.reasoning.map_markers(rename)
        return replace(self, calls=self.calls.map_markers(rename), reasoning=reasoning, call_format=None)

    def with_reasoning_of(self, other: "Dialect") -> "Dialect":
        """These calls with the reasoning of `other`: `qwen3+hermes`."""
        if other.calls == self.calls and other.reasoning == self.reasoning:
            return self  # two names of one dialect: `openai_gptoss+openai`
        if other.reasoning is None:
            raise EngineError(f"The dialect '{other.names[0]}' has no reasoning tags to combine with others.")
        return replace(self, names=(f"{other.names[0]}+{self.names[0]}",), reasoning=other.reasoning)

    def with_reasoning_tags(self, start: str, end: str) -> "Dialect":
        """The same with these tags around reasoning."""
        if self.has_own_reasoning:
            message = f"The dialect '{self.names[0]}' does not write its reasoning between tags."
            raise EngineError(f"{message} Leave --reasoning-tags out.")
        markers = ReasoningMarkers((start,), (end,), (start,), self.reasoning is None or self.reasoning.calls)
        return replace(self, reasoning=markers, answer_start=None)

    @property
    def has_own_reasoning(self) -> bool:
        """Reasoning is part of the grammar of calls, and not to be replaced."""
        states = self.calls.states.values()
        return any(isinstance(state, Span) and state.kind is SpanKind.REASONING for state in states)
