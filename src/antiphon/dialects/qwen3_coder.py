"""Calls as XML-like functions and parameters: Qwen3-Coder, Qwen3.5, Step 3.5, MiniCPM-V, MiMo and others.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Rome
    </parameter>
    </function>
    </tool_call>

One newline on each side of a value is not part of it, except in MiMo's, which
are verbatim. A block may have several functions. `<tool_call>` may be missing:
`<function=` alone is ordinary text, so it is a call only of a function that the request
offers. Each closing tag may be missing, too: a value also ends before a parameter on a
new line, and where the function ends and its block with it. The closing tags of
a call alone are text in a value.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    Habits,
    Key,
    Name,
    Space,
    Span,
    SpanKind,
    State,
    Trim,
    Value,
    unclosed,
)
from antiphon.decode.headers import plain_key, plain_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_NAMED = {">": "arguments", "</function>": "called"}
_END = {"</function>": "called", "</tool_call>": "text"}
_NEXT = {"<function=": "name", "<tool_call>": "opening"}
_UNCLOSED = {"<parameter=": "key", "</tool_call>": "text", **_NEXT}
_CALL_END = {
    "</function>\n</tool_call>": "text",
    "</function></tool_call>": "text",
    "</function>\n<function=": "name",
}
_VALUE_END = {
    "</parameter>": "arguments",
    "\n<parameter=": "key",
    **_CALL_END,
}
_VALUE_UNCLOSED = {"</parameter\n": "arguments"}

_CALLS: dict[str, State] = {
    "text": Span(SpanKind.TEXT, on={**_NEXT, "<function=": "bare"}),
    "opening": Span(SpanKind.OPENING, on={"<function=": "name"}, habits=Habits({"<tool_call>": "opening"})),
    "name": Name(on=_NAMED, parse=plain_name, unclosed=_UNCLOSED),
    "bare": Name(on=_NAMED, parse=plain_name, unclosed=_UNCLOSED, names=AcceptedNames.DECLARED),
    "arguments": Span(SpanKind.CALL, on={"<parameter=": "key", **_END, **_NEXT}),
    "key": Key(on={">": "value"}, parse=plain_key),
    "called": Span(SpanKind.MARKUP, on={"</tool_call>": "text", **_NEXT}),
}

QWEN3_CODER = Dialect(
    names=("qwen3_coder", "qwen3_xml", "step3p5", "minicpmv", "nanbeige", "berrylm"),
    calls=Grammar({**_CALLS, "value": Value(on=_VALUE_END, trim=Trim.NEWLINE, habits=_VALUE_UNCLOSED)}),
    reasoning=THINK_TOKENS,
)

MIMO = Dialect(
    names=("mimo",),
    calls=Grammar(
        {**_CALLS, "value": Value(on={**_VALUE_END, **unclosed(_CALL_END)}, habits=_VALUE_UNCLOSED)}
    ),
    reasoning=THINK_TOKENS,
)

STEP5 = Dialect(
    names=("step5",),
    calls=Grammar(
        {
            **QWEN3_CODER.calls.states,
            "text": Span(SpanKind.TEXT, on={**_NEXT, "<function=": "bare"}, space=Space.TEXT),
        }
    ),
    reasoning=THINK_TOKENS,
)
"""The space around its text is part of the text."""
