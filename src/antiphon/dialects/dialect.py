"""What a dialect is.

A dialect is data: how a family writes its calls, how its thoughts, which rule
its call ids follow, and how tools are taught to a model whose chat template
ignores them.
"""

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.errors import EngineError
from antiphon.core.grammar import Grammar, Kind, Span, Thoughts
from antiphon.decode.ids import IdRule, openai_call_id
from antiphon.render.renderer import Renderer
from antiphon.render.tool_prompt import ToolPrompt

TEXT = Grammar({"text": Span(Kind.TEXT)})
"""Everything that the model writes is said."""

RendererMaker = Callable[[str | None], Renderer]
"""Makes a renderer for prompts of this date (`2026-11-21`), None for today's."""


class Dialect(Struct, frozen=True):
    """How a model family writes. `names` are what users type; the first is the canonical one.

    `calls` is the grammar of everything but thoughts between tags, which are
    `thoughts`. A family whose thoughts are part of its grammar has none here.
    `answering` is what a model writes to end a thought and begin its answer,
    where a closing tag alone does not. `suffix` is a pattern whose group finds,
    in what a model's template writes, the suffix that this model gives to every tag.
    `renderer` makes what writes the prompts of a family that is not left to chat templates.
    """

    names: tuple[str, ...]
    calls: Grammar = TEXT
    thoughts: Thoughts | None = None
    ids: IdRule = openai_call_id
    tool_prompt: ToolPrompt | None = None
    answering: str | None = None
    suffix: str | None = None
    renderer: RendererMaker | None = None

    @property
    def grammar(self) -> Grammar:
        """The whole grammar."""
        return self.calls.with_thoughts(self.thoughts) if self.thoughts else self.calls

    @property
    def closing(self) -> str | None:
        """What ends a thought and begins the answer; None if there are no thoughts."""
        return self.answering or (f"\n{self.thoughts.closes[0]}\n\n" if self.thoughts else None)

    def spelled_as(self, written: str) -> "Dialect":
        """This dialect with the suffix that tags have in `written`, if it knows of any."""
        found = re.search(self.suffix, written) if self.suffix else None
        if found is None:
            return self

        def spell(marker: str) -> str:
            return f"{marker[:-1]}{found[1]}>"

        thoughts = self.thoughts and Thoughts(
            tuple(map(spell, self.thoughts.opens)), tuple(map(spell, self.thoughts.closes))
        )
        return replace(self, calls=self.calls.respelled(spell), thoughts=thoughts)

    def thinking_as(self, other: "Dialect") -> "Dialect":
        """These calls with the thoughts of `other`: `qwen3+hermes`."""
        if other.thoughts is None:
            raise EngineError(f"The dialect '{other.names[0]}' has no thoughts to combine with others.")
        return replace(self, names=(f"{other.names[0]}+{self.names[0]}",), thoughts=other.thoughts)
