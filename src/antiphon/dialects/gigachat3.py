"""GigaChat 3: each call is a separate message.

    Let me look.<|message_sep|>

    function call<|role_sep|>
    {"name": "get_weather", "arguments": {"city": "Rome"}}</s>

Version 3.1 writes `<|function_call|>` before the object instead.
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect

_OPENERS = {"function call<|role_sep|>": "call", "<|function_call|>": "call"}
_MESSAGES = {"<|message_sep|>": "between", **_OPENERS}

GIGACHAT3 = Dialect(
    names=("gigachat3",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_MESSAGES),
            "between": Span(SpanKind.MARKUP, on=_MESSAGES),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</s>": "text", **_MESSAGES}),
        },
        tokens=("<|role_sep|>",),
    ),
)
