"""Thoughts between tags, without calls.

    <think>
    The user wants …
    </think>

    The answer is …

Many templates write `<think>` for the model, so that the answer begins inside.
Several families differ in nothing else than in the names that users know.
"""

from antiphon.core.grammar import Thoughts
from antiphon.dialects.dialect import Dialect

TAGS = Thoughts(opens=("<think>",), closes=("</think>",))

THINK = Dialect(
    names=("think", "deepseek_r1", "qwen3", "nemotron_v3", "granite_thinking_parser", "holo2"),
    thoughts=TAGS,
)
