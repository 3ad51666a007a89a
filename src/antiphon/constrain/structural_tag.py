"""Grammar IR → xgrammar's structural tags, which vLLM and SGLang take.

They contain GBNF, so that a schema is enforced equally by every engine. Triggers become triggered tags, each
with the grammar of what follows the trigger.
"""

import msgspec

from antiphon.constrain import gbnf
from antiphon.constrain.grammar_ir import GrammarIR
from antiphon.constrain.matcher import residual
from antiphon.core.constraint import StructuralTag


def write(grammar_ir: GrammarIR, triggers: tuple[str, ...] = ()) -> StructuralTag:
    """The structural tag of the grammar; with triggers, one that applies from these on."""
    if not triggers:
        return _tag(_grammar(grammar_ir))
    tags = [
        {"type": "tag", "begin": trigger, "content": _grammar(residual(grammar_ir, trigger)), "end": ""}
        for trigger in triggers
    ]
    return _tag({"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": True})


def _grammar(grammar_ir: GrammarIR) -> dict[str, str]:
    return {"type": "grammar", "grammar": gbnf.write(grammar_ir).text}


def _tag(format_: dict[str, object] | dict[str, str]) -> StructuralTag:
    return StructuralTag(msgspec.json.encode({"type": "structural_tag", "format": format_}).decode())
