"""LongCat: Hermes calls in other tags.

    <longcat_tool_call>
    {"name": "get_weather", "arguments": {"city": "Rome"}}
    </longcat_tool_call>

The reasoning models write `<longcat_think>`, distilled ones `<think>`.
"""

from antiphon.core.grammar import Grammar, JsonCalls, ReasoningMarkers, Span, SpanKind
from antiphon.dialects.dialect import Dialect

LONGCAT = Dialect(
    names=("longcat",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<longcat_tool_call>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(
                SpanKind.MARKUP, on={"</longcat_tool_call>": "text", "<longcat_tool_call>": "call"}
            ),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<longcat_think>", "<think>"),
        closes=("</longcat_think>", "</think>"),
        reopens=("<longcat_think>",),
    ),
)
