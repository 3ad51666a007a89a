"""Llama 3 and 4: calls as JSON objects, often without any marker.

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "now", "parameters": {}}

Without `<|python_tag|>`, an object is a call only at the beginning of an answer,
and only of a function that the request offers.
"""

from antiphon.core.grammar import AcceptedNames, Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

_TAG = {"<|python_tag|>": "call"}

LLAMA3_JSON = Dialect(
    names=("llama3_json", "llama3", "llama4_json"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_TAG, peek={"{": "bare"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={";": "call", **_TAG}, peek={"{": "bare"}),
            "bare": JsonCalls(then="after", names=AcceptedNames.DECLARED),
            "after": Span(SpanKind.MARKUP, on={";": "bare", **_TAG}, peek={"{": "bare"}),
        }
    ),
    reasoning=THINK_TAGS,
)
