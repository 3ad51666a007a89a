"""TeleChat 4: the body of a call is JSON, or a name with keys and values in tags.

    <think>I need the weather.</think>
    <tool_call>get_weather<param_key>city</param_key><param_value>Rome</param_value></tool_call>
    <tool_call>{"name": "now", "arguments": {}}</tool_call>
    <tool_call>get_weather{"city": "Rome"}</tool_call>

One block per call. Values are verbatim.
"""

from antiphon.core.grammar import (
    Grammar,
    Habits,
    JsonArguments,
    JsonCalls,
    Key,
    Name,
    Span,
    SpanKind,
    Value,
    unclosed,
)
from antiphon.decode.headers import plain_key, plain_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_CALL = {"<tool_call>": "opening"}
_NEXT = {"<param_key>": "key", "</tool_call>": "text", **_CALL}

TELECHAT4 = Dialect(
    names=("telechat4", "telechat"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_CALL),
            "opening": Span(SpanKind.OPENING, peek={"{": "json", "[": "json"}, otherwise="name"),
            "json": JsonCalls(then="called"),
            "name": Name(
                on={"<param_key>": "key", "</tool_call>": "text"},
                peek={"{": "object"},
                parse=plain_name,
                words=2,
                unclosed={"</param_value>": "arguments"},
                glued={"</param_key>": "keyed"},
            ),
            "object": JsonArguments(then="called"),
            "key": Key(on={"</param_key>": "keyed", "<param_value>": "value"}, parse=plain_key),
            "keyed": Span(SpanKind.CALL, on={"<param_value>": "value", **_NEXT}, otherwise="value"),
            "value": Value(
                on={"</param_value>": "arguments"},
                habits=unclosed({"<param_key>": "key", "</tool_call>": "text"}),
            ),
            "arguments": Span(
                SpanKind.CALL, on=_NEXT, habits=Habits(peek={"</param_key>": "key"}, names=("</param_key>",))
            ),
            "called": Span(SpanKind.MARKUP, on={"</tool_call>": "text", **_CALL}),
        }
    ),
    reasoning=THINK_TOKENS,
)
