"""DeepSeek 3.2 and 4: calls as elements that say whether a value is text (DSML).

    <think>I need the weather.</think>

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

`string="true"` marks verbatim text; any other value is JSON, or text if it does not
parse. Version 4 calls the block `tool_calls`, and in practice also `toolcalls` or
`tool`; version 4.1 calls it `calls`, with a space before each tag's name.
"""

from antiphon.core.grammar import Grammar, Key, Name, Span, SpanKind, Value
from antiphon.decode.headers import quoted_name, typed_key
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_NAME = Name(on={">": "arguments"}, parse=quoted_name)
_KEY = Key(on={">": "value"}, parse=typed_key("name", "string", texts="true"))
_VALUE = Value(on={"</｜DSML｜parameter>": "arguments"})
_PARAMETER = {"<｜DSML｜parameter ": "key", "</｜DSML｜invoke>": "called", "<｜DSML｜invoke name=": "name"}

_V4_OPEN = {
    "<｜DSML｜tool_calls>": "opening",
    "<｜DSML｜toolcalls>": "opening",
    "<｜DSML｜tool>": "opening",
}
_V4_CLOSE = {"</｜DSML｜tool_calls>": "text", "</｜DSML｜toolcalls>": "text", "</｜DSML｜tool>": "text"}

DEEPSEEK_V32 = Dialect(
    names=("deepseek_v32", "deepseekv32"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<｜DSML｜function_calls>": "opening"}),
            "opening": Span(
                SpanKind.OPENING, on={"<｜DSML｜invoke name=": "name", "</｜DSML｜function_calls>": "text"}
            ),
            "name": _NAME,
            "arguments": Span(SpanKind.CALL, on={**_PARAMETER, "</｜DSML｜function_calls>": "text"}),
            "key": _KEY,
            "value": _VALUE,
            "called": Span(
                SpanKind.MARKUP, on={"<｜DSML｜invoke name=": "name", "</｜DSML｜function_calls>": "text"}
            ),
        }
    ),
    reasoning=THINK_TOKENS,
)

DEEPSEEK_V4 = Dialect(
    names=("deepseek_v4", "deepseek-v4", "deepseekv4"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_V4_OPEN),
            "opening": Span(SpanKind.OPENING, on={"<｜DSML｜invoke name=": "name", **_V4_CLOSE}),
            "name": _NAME,
            "arguments": Span(SpanKind.CALL, on={**_PARAMETER, **_V4_CLOSE}),
            "key": _KEY,
            "value": _VALUE,
            "called": Span(SpanKind.MARKUP, on={"<｜DSML｜invoke name=": "name", **_V4_CLOSE}),
        }
    ),
    reasoning=THINK_TOKENS,
)

DEEPSEEK_V41 = Dialect(
    names=("deepseek_v41", "deepseek-v41", "deepseekv41"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<｜DSML｜ calls>": "opening"}),
            "opening": Span(
                SpanKind.OPENING, on={"<｜DSML｜ invoke name=": "name", "</｜DSML｜ calls>": "text"}
            ),
            "name": _NAME,
            "arguments": Span(
                SpanKind.CALL,
                on={
                    "<｜DSML｜ parameter ": "key",
                    "<｜DSML｜ invoke name=": "name",
                    "</｜DSML｜ invoke>": "called",
                    "</｜DSML｜ calls>": "text",
                },
            ),
            "key": _KEY,
            "value": Value(on={"</｜DSML｜ parameter>": "arguments"}),
            "called": Span(
                SpanKind.MARKUP, on={"<｜DSML｜ invoke name=": "name", "</｜DSML｜ calls>": "text"}
            ),
        }
    ),
    reasoning=THINK_TOKENS,
)
