"""Reasoning between tags, without calls.

    <think>
    The user wants …
    </think>

    The answer is …

Many templates end the prompt with `<think>`, so that the answer begins inside.
Several families differ only in their names.
"""

from antiphon.core.grammar import ReasoningMarkers
from antiphon.dialects.dialect import Dialect

THINK_TAGS = ReasoningMarkers(opens=("<think>",), closes=("</think>",))
"""For models where the tags are ordinary text, which they also quote: a later tag is text."""
THINK_TOKENS = ReasoningMarkers(opens=("<think>",), closes=("</think>",), reopens=("<think>",))
"""For models where each tag is one token of the vocabulary, and other decoders accept several blocks."""

THINK = Dialect(
    names=(
        *("think", "deepseek_r1", "deepseek-r1", "qwen3", "qwen3-thinking", "nemotron_v3", "nemotron_3"),
        *("granite_thinking_parser", "holo2"),
    ),
    reasoning=THINK_TOKENS,
)
