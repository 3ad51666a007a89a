"""Kimi-VL-Thinking: reasoning between tags of its own, without calls.

◁think▷The user wants …◁/think▷The answer is …
"""

from antiphon.core.grammar import ReasoningMarkers
from antiphon.dialects.dialect import Dialect

KIMI_VL = Dialect(
    names=("kimi_vl", "kimi"),
    reasoning=ReasoningMarkers(opens=("◁think▷",), closes=("◁/think▷",), reopens=("◁think▷",)),
)
