"""What a dialect is.

A dialect is data: a grammar, the rule for call ids, and how tools are taught
to a model whose chat template ignores them.
"""

from msgspec import Struct

from antiphon.core.grammar import Grammar
from antiphon.decode.ids import CallIds, openai_call_id
from antiphon.render.tool_prompt import ToolPrompt


class Dialect(Struct, frozen=True):
    """How a model family writes. `names` are what users type; the first is the canonical one."""

    names: tuple[str, ...]
    grammar: Grammar
    ids: CallIds = openai_call_id
    tool_prompt: ToolPrompt | None = None
