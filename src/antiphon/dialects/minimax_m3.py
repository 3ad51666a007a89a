"""MiniMax M3: arguments as elements, with a prefix before every tag.

    <mm:think>I need the weather.</mm:think>
    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Rome]<]minimax[>[</city>
    ]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</tags>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Elements in an argument are the members of an object; repeated names and `item`
are the values of an array, according to the tool's schema; an array may be known to be
complete only when another argument begins. A block may have several calls, and the
closing tags of a call may be missing.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    ElementArgument,
    Grammar,
    Habits,
    Name,
    ReasoningMarkers,
    Span,
    SpanKind,
)
from antiphon.decode.headers import quoted_name
from antiphon.dialects.dialect import Dialect

_END = {"]<]minimax[>[</invoke>": "called", "]<]minimax[>[</tool_call>": "text"}
_NEXT = {"]<]minimax[>[<invoke name=": "name", "]<]minimax[>[<tool_call>": "opening"}

MINIMAX_M3 = Dialect(
    names=("minimax_m3", "minimax-m3"),
    calls=Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on={"]<]minimax[>[<tool_call>": "opening"},
                habits=Habits({"]<]minimax[>[<invoke name=": "bare"}, hidden=(*_END, "]<]minimax[>[")),
            ),
            "opening": Span(
                SpanKind.OPENING,
                on={"]<]minimax[>[<invoke name=": "name", "]<]minimax[>[</tool_call>": "text"},
                otherwise="opening",
            ),
            "name": Name(on={">": "arguments"}, parse=quoted_name),
            "bare": Name(on={">": "arguments"}, parse=quoted_name, names=AcceptedNames.DECLARED),
            "arguments": Span(SpanKind.CALL, on={"]<]minimax[>[<": "argument", **_END, **_NEXT}),
            "argument": ElementArgument(then="arguments", prefix="]<]minimax[>["),
            "called": Span(SpanKind.MARKUP, on={**_END, **_NEXT}),
        },
        tokens=("]<]minimax[>[",),
    ),
    reasoning=ReasoningMarkers(opens=("<mm:think>",), closes=("</mm:think>",), reopens=("<mm:think>",)),
)
