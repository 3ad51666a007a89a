"""Apertus: an array of calls, each an object whose one key is the function's name.

<|inner_prefix|>I need the weather.<|inner_suffix|>Let me look.
<|tools_prefix|>[{"get_weather": {"city": "Rome"}}]<|tools_suffix|>

Reasoning, calls and text come in any order; the template leaves reasoning open around calls.
"""

from antiphon.core.grammar import Grammar, KeyedCalls, ReasoningMarkers, Span, SpanKind
from antiphon.dialects.dialect import Dialect

APERTUS = Dialect(
    names=("apertus", "apertus2509"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<|tools_prefix|>": "call"}),
            "call": KeyedCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"<|tools_suffix|>": "text", "<|tools_prefix|>": "call"}),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|inner_prefix|>",), closes=("<|inner_suffix|>",), reopens=("<|inner_prefix|>",)
    ),
)
