"""openPangu v2: an array of calls between two tokens.

    <think>I need the weather.</think>
    <|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]<|tool_call_end|>

Checkpoints whose vocabulary has no `<think>` write `[unused16]` and `[unused17]` around reasoning.
"""

from antiphon.core.grammar import Grammar, JsonCalls, ReasoningMarkers, Span, SpanKind
from antiphon.dialects.dialect import Dialect

OPENPANGU_V2 = Dialect(
    names=("openpangu_v2", "pangu"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<|tool_call_start|>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"<|tool_call_end|>": "text", "<|tool_call_start|>": "call"}),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<think>", "[unused16]"),
        closes=("</think>", "[unused17]"),
        reopens=("<think>", "[unused16]"),
    ),
)
