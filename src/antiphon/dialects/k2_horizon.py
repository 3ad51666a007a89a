"""K2 Horizon: the body of a call is JSON, or keys and values in tags, with types or without.

    <ifm|think>
    I need the weather.
    </ifm|think>
    <ifm|tool_calls>
    <ifm|tool_call>get_weather
    <ifm|arg_key>city</ifm|arg_key>
    <ifm|arg_type>string</ifm|arg_type>
    <ifm|arg_value>Rome</ifm|arg_value>
    </ifm|tool_call>
    <ifm|tool_call>{"name": "now", "arguments": {}}</ifm|tool_call>
    </ifm|tool_calls>

The prompt decides which of them the model writes. It also decides the reasoning effort,
and each effort has another reasoning tag.
"""

from antiphon.core.grammar import (
    Grammar,
    Habits,
    JsonCalls,
    Key,
    Name,
    ReasoningMarkers,
    Span,
    SpanKind,
    Value,
    unclosed,
)
from antiphon.decode.headers import plain_name, tagged_key
from antiphon.dialects.dialect import Dialect

_CALLS = {"<ifm|tool_calls>": "group", "<ifm|tool_call>": "opening"}
_END = {"</ifm|tool_call>": "called", "</ifm|tool_calls>": "text"}

K2_HORIZON = Dialect(
    names=("k2_horizon",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_CALLS),
            "group": Span(
                SpanKind.OPENING,
                on={"<ifm|tool_call>": "opening", "</ifm|tool_calls>": "text"},
                otherwise="group",
            ),
            "opening": Span(SpanKind.OPENING, peek={"{": "json", "[": "json"}, otherwise="name"),
            "json": JsonCalls(then="called"),
            "name": Name(on={"<ifm|arg_key>": "key", **_END}, parse=plain_name),
            "arguments": Span(
                SpanKind.CALL,
                on={"<ifm|arg_key>": "key", **_END, **_CALLS},
                habits=Habits(peek={"</ifm|arg_key>": "key"}, names=("</ifm|arg_key>",)),
            ),
            "key": Key(
                on={"<ifm|arg_value>": "value"},
                parse=tagged_key("</ifm|arg_key>", "<ifm|arg_type>", "</ifm|arg_type>"),
            ),
            "value": Value(
                on={"</ifm|arg_value>": "arguments"},
                habits=unclosed({"<ifm|arg_key>": "key", "</ifm|tool_call>": "called"}),
            ),
            "called": Span(SpanKind.MARKUP, on={**_END, **_CALLS}),
        },
        tokens=("</ifm|arg_key>", "<ifm|arg_type>", "</ifm|arg_type>"),
    ),
    reasoning=ReasoningMarkers(
        opens=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        closes=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        reopens=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    ),
)
