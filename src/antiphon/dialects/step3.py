"""Step 3: groups of calls, each an element after its type.

    <｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">
    <steptml:parameter name="city">Rome</steptml:parameter>
    </steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>

Values are verbatim. Each closing marker of a call may be missing.
"""

from antiphon.core.grammar import Grammar, Habits, Key, Name, Span, SpanKind, Value, unclosed
from antiphon.decode.headers import quoted_key, quoted_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_BEGIN = {"<｜tool_calls_begin｜>": "group", "<｜tool_call_begin｜>": "opening"}
_INVOKE = {"<steptml:invoke name=": "name"}
_END = {"<｜tool_call_end｜>": "called", "<｜tool_calls_end｜>": "text"}

STEP3 = Dialect(
    names=("step3",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_BEGIN, habits=Habits(hidden=tuple(_END))),
            "group": Span(
                SpanKind.OPENING,
                on={"<｜tool_call_begin｜>": "opening", "<｜tool_calls_end｜>": "text", **_INVOKE},
                otherwise="group",
            ),
            "opening": Span(SpanKind.OPENING, on={"function<｜tool_sep｜>": "function", **_INVOKE}),
            "function": Span(SpanKind.OPENING, on=_INVOKE),
            "name": Name(on={">": "arguments"}, parse=quoted_name),
            "arguments": Span(
                SpanKind.CALL,
                on={
                    "<steptml:parameter name=": "key",
                    "</steptml:invoke>": "called",
                    "<｜tool_call_begin｜>": "opening",
                    **_END,
                },
            ),
            "key": Key(on={">": "value"}, parse=quoted_key),
            "value": Value(
                on={"</steptml:parameter>": "arguments"},
                habits=unclosed({"<steptml:parameter name=": "key", "</steptml:invoke>": "called"}),
            ),
            "called": Span(SpanKind.MARKUP, on={**_BEGIN, **_END}),
        }
    ),
    reasoning=THINK_TOKENS,
)
