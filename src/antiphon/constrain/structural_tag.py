"""Forms → xgrammar's structural tags, as vLLM and SGLang take them.

xgrammar reads GBNF, so a language means the same there as in llama.cpp: one
notation, and no second reading of a schema. Triggers become its triggered tags,
each with the grammar of what follows the trigger.
"""

import msgspec

from antiphon.constrain import gbnf
from antiphon.constrain.form import Language
from antiphon.constrain.matcher import residual
from antiphon.core.constraint import StructuralTag


def write(language: Language, triggers: tuple[str, ...] = ()) -> StructuralTag:
    """The structural tag of the language; with triggers, one that holds from these on."""
    if not triggers:
        return _tag(_grammar(language))
    tags = [
        {"type": "tag", "begin": trigger, "content": _grammar(residual(language, trigger)), "end": ""}
        for trigger in triggers
    ]
    return _tag({"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": True})


def _grammar(language: Language) -> dict[str, str]:
    return {"type": "grammar", "grammar": gbnf.write(language).text}


def _tag(format_: dict[str, object] | dict[str, str]) -> StructuralTag:
    return StructuralTag(msgspec.json.encode({"type": "structural_tag", "format": format_}).decode())
