"""Phi-4-mini: an array of calls after a word.

    functools[{"name": "get_weather", "arguments": {"city": "Rome"}}]

No marker closes the call.
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

PHI4_MINI_JSON = Dialect(
    names=("phi4_mini_json",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"functools": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"functools": "call"}),
        }
    ),
    reasoning=THINK_TAGS,
)
