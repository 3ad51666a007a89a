"""IBM Granite 3: an array of calls after one marker; reasoning between phrases. And Granite 20B FC.

    Here is my thought process: I need the weather. Here is my response:
    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]

3.0 writes `<|tool_call|>`, 3.1 `<tool_call>`; the array's end is the end. The
20B function caller writes one object after each of its markers:

    <function_call> {"name": "get_weather", "arguments": {"city": "Rome"}}

Granite 4 writes as Hermes does.
"""

from antiphon.core.grammar import Grammar, JsonCalls, ReasoningMarkers, Span, SpanKind
from antiphon.dialects.dialect import Dialect

_OPENERS = {"<|tool_call|>": "call", "<tool_call>": "call"}

GRANITE = Dialect(
    names=("granite",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_OPENERS),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on=_OPENERS),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("Here is my thought process:", "Here's my thought process:"),
        closes=("Here is my response:", "Here's my response:"),
    ),
)

GRANITE_20B_FC = Dialect(
    names=("granite-20b-fc",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<function_call>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"<function_call>": "call"}),
        }
    ),
)
