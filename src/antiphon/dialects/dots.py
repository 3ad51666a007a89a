"""rednote's dots: calls as elements with names in attributes, or as JSON.

    <dots_function_call>
    <invoke name="get_weather">
    <parameter name="city">Rome</parameter>
    </invoke>
    </dots_function_call>

A block may have several calls. Instead of them it may have
`{"name": …, "arguments": {…}}`. Values are verbatim.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    Habits,
    JsonCalls,
    Key,
    Name,
    Span,
    SpanKind,
    Value,
    unclosed,
)
from antiphon.decode.headers import quoted_key, quoted_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

_END = {"</invoke>": "called", "</dots_function_call>": "text"}
_NEXT = {"<invoke name=": "name", "<dots_function_call>": "opening"}
_UNCLOSED = unclosed(
    {
        "</invoke>\n</dots_function_call>": "text",
        "</invoke></dots_function_call>": "text",
        "</invoke>\n<invoke name=": "name",
    }
)

DOTS = Dialect(
    names=("dots",),
    calls=Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on={"<dots_function_call>": "opening"},
                habits=Habits({"<invoke name=": "bare"}),
            ),
            "opening": Span(
                SpanKind.OPENING,
                on={"<invoke name=": "name", "</dots_function_call>": "text"},
                peek={"{": "json", "[": "json"},
            ),
            "json": JsonCalls(then="called"),
            "name": Name(on={">": "arguments"}, parse=quoted_name),
            "bare": Name(on={">": "arguments"}, parse=quoted_name, names=AcceptedNames.DECLARED),
            "arguments": Span(SpanKind.CALL, on={"<parameter name=": "key", **_END, **_NEXT}),
            "key": Key(on={">": "value"}, parse=quoted_key),
            "value": Value(
                on={
                    "</parameter>": "arguments",
                    "\n<parameter name=": "key",
                    **_UNCLOSED,
                }
            ),
            "called": Span(SpanKind.MARKUP, on={"</dots_function_call>": "text", **_NEXT}),
        }
    ),
    reasoning=THINK_TAGS,
)
