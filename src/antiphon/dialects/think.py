"""Thoughts between tags, no calls: DeepSeek R1, QwQ and their distillations.

    <think>
    The user wants …
    </think>

    The answer is …

Many templates write `<think>` for the model, so the answer begins inside.
"""

from antiphon.core.grammar import Grammar, Kind, Span
from antiphon.dialects.dialect import Dialect

THINK = Dialect(
    names=("think", "deepseek_r1"),
    grammar=Grammar(
        {
            "text": Span(Kind.TEXT, first={"<think>": "thinking", "</think>": "text"}),
            "thinking": Span(Kind.REASONING, on={"</think>": "text"}),
        }
    ),
)
