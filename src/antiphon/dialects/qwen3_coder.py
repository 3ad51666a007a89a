"""Calls as XML-like functions and parameters: Qwen3-Coder, Qwen3.5 and their relatives.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Rome
    </parameter>
    </function>
    </tool_call>

One newline on each side of a value is not part of it. Several functions may
stand in one block, `<tool_call>` may be missing, and so may each closing tag.
"""

from antiphon.core.grammar import Grammar, Key, Kind, Name, Span, Trim, Value
from antiphon.decode.headers import plain, plain_key
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import TAGS

_END = {"</function>": "called", "</tool_call>": "text"}

QWEN3_CODER = Dialect(
    names=("qwen3_coder", "qwen3_xml"),
    calls=Grammar(
        {
            "text": Span(Kind.TEXT, on={"<tool_call>": "opening", "<function=": "name"}),
            "opening": Span(Kind.OPENING, on={"<function=": "name", "</tool_call>": "text"}),
            "name": Name(on={">": "arguments"}, form=plain),
            "arguments": Span(Kind.CALL, on={"<parameter=": "key", **_END}),
            "key": Key(on={">": "value"}, form=plain_key),
            "value": Value(on={"</parameter>": "arguments", "<parameter=": "key", **_END}, trim=Trim.NEWLINE),
            "called": Span(
                Kind.MARKUP, on={"</tool_call>": "text", "<function=": "name", "<tool_call>": "opening"}
            ),
        }
    ),
    thoughts=TAGS,
)
