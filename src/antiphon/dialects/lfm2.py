"""Calls as a Python list between two tokens: Liquid's LFM2.

    Let me look.
    <|tool_call_start|>[get_weather(city="Rome"), now()]<|tool_call_end|>

The models write reserved words as names, numbers with leading zeros, and raw
newlines and unescaped quotes in strings. Some write the list a second time,
closed by a second `<|tool_call_end|>`: the repetition is dropped. Some write JSON instead.
"""

from antiphon.core.grammar import Grammar, Habits, Header, JsonCalls, PythonCalls, Span, SpanKind
from antiphon.decode.headers import repetition_router
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"

LFM2 = Dialect(
    names=("lfm2",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={_START: "opening"}),
            "opening": Span(
                SpanKind.OPENING, otherwise="calls", habits=Habits(peek={"{": "json", "[{": "json"})
            ),
            "calls": PythonCalls(then="called"),
            "json": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={_END: "after", _START: "opening"}),
            "after": Span(
                SpanKind.MARKUP, on={_START: "opening"}, first={_END: "after"}, peek={"[": "repetition"}
            ),
            "repetition": Header(ends=(_END,), route=repetition_router("after")),
        }
    ),
    reasoning=THINK_TAGS,
)
