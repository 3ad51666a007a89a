"""Seed-OSS: the calls of Qwen3-Coder, in other tags.

    <seed:think>
    I need the weather.
    </seed:think>
    <seed:tool_call>
    <function=get_weather>
    <parameter=city>Rome</parameter>
    </function>
    </seed:tool_call>

One newline on each side of a value is not part of it. Each tag may be missing; without
`<seed:tool_call>` it is a call only of a function that the request offers.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    Habits,
    Key,
    Name,
    ReasoningMarkers,
    Span,
    SpanKind,
    Trim,
    Value,
)
from antiphon.decode.headers import plain_key, plain_name
from antiphon.dialects.dialect import Dialect

_NAMED = {">": "arguments", "</function>": "called"}
_END = {"</function>": "called", "</seed:tool_call>": "text"}
_NEXT = {"<function=": "name", "<seed:tool_call>": "opening"}
_UNCLOSED = {"<parameter=": "key", "</seed:tool_call>": "text", **_NEXT}

SEED_OSS = Dialect(
    names=("seed_oss",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={**_NEXT, "<function=": "bare"}),
            "opening": Span(
                SpanKind.OPENING, on={"<function=": "name"}, habits=Habits({"<seed:tool_call>": "opening"})
            ),
            "name": Name(on=_NAMED, parse=plain_name, unclosed=_UNCLOSED),
            "bare": Name(on=_NAMED, parse=plain_name, unclosed=_UNCLOSED, names=AcceptedNames.DECLARED),
            "arguments": Span(SpanKind.CALL, on={"<parameter=": "key", **_END, **_NEXT}),
            "key": Key(on={">": "value"}, parse=plain_key),
            "value": Value(
                on={
                    "</parameter>": "arguments",
                    "\n<parameter=": "key",
                    "</function>\n</seed:tool_call>": "text",
                    "</function></seed:tool_call>": "text",
                    "</function>\n<function=": "name",
                },
                trim=Trim.NEWLINE,
                habits={"</parameter\n": "arguments"},
            ),
            "called": Span(SpanKind.MARKUP, on={"</seed:tool_call>": "text", **_NEXT}),
        }
    ),
    reasoning=ReasoningMarkers(opens=("<seed:think>",), closes=("</seed:think>",), reopens=("<seed:think>",)),
)
