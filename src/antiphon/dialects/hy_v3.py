"""Hunyuan 3 and 4: groups of calls, each a name, keys and values.

    <think>I need the weather.</think>
    <tool_calls><tool_call>get_weather<tool_sep>
    <arg_key>city</arg_key>
    <arg_value>Rome</arg_value>
    </tool_call></tool_calls>

Version 4 has no `<tool_sep>` and no line breaks. Values are verbatim. Tags are left out
and exchanged as by GLM (`glm45.py`). Some
checkpoints add a suffix to every tag, `<tool_call:6124c78e>`: it is taken from what
their template renders.
"""

from antiphon.core.grammar import Grammar, Habits, Key, Lookahead, Name, Span, SpanKind, Value, unclosed
from antiphon.decode.headers import innermost_key, plain_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_NEXT = {"<tool_call>": "name", "<tool_calls>": "opening"}
_END = {"</tool_call>": "called", "</tool_calls>": "text"}

HY_V3 = Dialect(
    names=("hy_v3", "hy_v4", "hunyuan"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_NEXT),
            "opening": Span(
                SpanKind.OPENING,
                on={"<tool_call>": "name", "</tool_calls>": "text"},
                habits=Habits({"<tool_calls>": "opening"}),
            ),
            "name": Name(
                on={"<tool_sep>": "arguments", "<arg_key>": "key", **_END},
                parse=plain_name,
                words=2,
                unclosed={"</arg_value>": "arguments", "<tool_call>": "again"},
                glued={"</arg_key>": "keyed"},
            ),
            "again": Lookahead("<tool_call>", on={"</arg_key>": "key"}, otherwise="name"),
            "arguments": Span(
                SpanKind.CALL,
                on={"<arg_key>": "key", **_END, **_NEXT},
                habits=Habits({"<tool_call>": "again"}, peek={"</arg_key>": "key"}, names=("</arg_key>",)),
            ),
            "key": Key(on={"</arg_key>": "keyed", "<arg_value>": "value"}, parse=innermost_key),
            "keyed": Span(
                SpanKind.CALL,
                on={"<arg_value>": "value", "<arg_key>": "key", **_END, **_NEXT},
                otherwise="value",
            ),
            "value": Value(
                on={"</arg_value>": "arguments"},
                habits=unclosed({"<arg_key>": "key", "</tool_call>": "called"}),
            ),
            "called": Span(SpanKind.MARKUP, on={"</tool_calls>": "text", **_NEXT}),
        }
    ),
    reasoning=THINK_TOKENS,
    suffix=r"<tool_calls?(:[0-9A-Za-z_-]+)>",
)
