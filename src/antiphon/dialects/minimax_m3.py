"""MiniMax M3: arguments as elements, with a prefix before every tag that no text has.

    <mm:think>I need the weather.</mm:think>
    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Rome]<]minimax[>[</city>
    ]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</tags>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Elements in an argument are the members of an object; repeated names and `item`
are the values of an array, as the tool's schema says, which is certain when another
argument begins, if not before. Several calls may stand in one block, and the closing
tags of a call may be missing.
"""

from antiphon.core.grammar import Grammar, Kind, Name, Span, Thoughts, Tree
from antiphon.decode.headers import quoted
from antiphon.dialects.dialect import Dialect

_END = {"]<]minimax[>[</invoke>": "called", "]<]minimax[>[</tool_call>": "text"}
_NEXT = {"]<]minimax[>[<invoke name=": "name", "]<]minimax[>[<tool_call>": "opening"}

MINIMAX_M3 = Dialect(
    names=("minimax_m3",),
    calls=Grammar(
        {
            "text": Span(Kind.TEXT, on={"]<]minimax[>[<tool_call>": "opening"}),
            "opening": Span(
                Kind.OPENING,
                on={"]<]minimax[>[<invoke name=": "name", "]<]minimax[>[</tool_call>": "text"},
            ),
            "name": Name(on={">": "arguments"}, form=quoted),
            "arguments": Span(Kind.CALL, on={"]<]minimax[>[<": "argument", **_END, **_NEXT}),
            "argument": Tree(then="arguments", prefix="]<]minimax[>["),
            "called": Span(Kind.MARKUP, on={**_END, **_NEXT}),
        }
    ),
    thoughts=Thoughts(opens=("<mm:think>",), closes=("</mm:think>",)),
)
