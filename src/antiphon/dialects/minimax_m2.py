"""MiniMax M2: calls as elements with names in attributes.

    <think>
    I need the weather.
    </think>

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Rome</parameter>
    </invoke>
    </minimax:tool_call>

A block may have several calls. Names have quotes of either kind, or none.
Values are verbatim. Closing tags may be missing: a value also ends before a
parameter on a new line, and where its call and the block end.
"""

from antiphon.core.grammar import AcceptedNames, Grammar, Habits, Key, Name, Span, SpanKind, Value, unclosed
from antiphon.decode.headers import quoted_key, quoted_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_END = {"</invoke>": "called", "</minimax:tool_call>": "text"}
_NEXT = {"<invoke name=": "name", "<minimax:tool_call>": "opening"}
_UNCLOSED = unclosed(
    {
        "</invoke>\n</minimax:tool_call>": "text",
        "</invoke></minimax:tool_call>": "text",
        "</invoke>\n<invoke name=": "name",
    }
)

MINIMAX_M2 = Dialect(
    names=("minimax_m2", "minimax-m2"),
    calls=Grammar(
        {
            "text": Span(
                SpanKind.TEXT, on={"<minimax:tool_call>": "opening"}, habits=Habits({"<invoke name=": "bare"})
            ),
            "opening": Span(SpanKind.OPENING, on={"<invoke name=": "name", "</minimax:tool_call>": "text"}),
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
            "called": Span(SpanKind.MARKUP, on={"</minimax:tool_call>": "text", **_NEXT}),
        }
    ),
    reasoning=THINK_TOKENS,
)

_CALL = {"<minimax:tool_call>": "opening"}

MINIMAX_M2_APPEND_THINK = Dialect(
    names=("minimax_m2_append_think", "minimax-append-think"),
    calls=Grammar(
        {
            **MINIMAX_M2.calls.states,
            "text": Span(SpanKind.TEXT, on=_CALL, first={"<think>": "reasoning"}),
            "reasoning": Span(SpanKind.TEXT, on=_CALL, entry_text="<think>"),
        }
    ),
)
"""For clients that want the reasoning in the text, with its tags, as the model writes it."""
