"""Inkling: every message is a block, and the token that opens it says what it is.

    <|content_thinking|>I need the weather.<|end_message|>
    <|message_model|><|content_text|>Let me look.<|end_message|>
    <|message_model|><|content_invoke_tool_json|>
    {"name": "get_weather", "args": {"city": "Rome"}}<|end_message|>

There are no line breaks between them. `<|content_invoke_tool_text|>` and
`<|content_tool_error|>` are shown as text. Models write the function's name before
`<|content_invoke_tool_json|>`, too, also at the beginning of an answer, and `&quot;` for a quote that ends a
string.
"""

from antiphon.core.grammar import Grammar, Habits, JsonCalls, Quotes, Span, SpanKind
from antiphon.dialects.dialect import Dialect

_CALL = "<|content_invoke_tool_json|>"
_BLOCKS = {
    "<|end_message|>": "between",
    "<|content_model_end_sampling|>": "between",
    "<|message_model|>": "between",
    "<|content_text|>": "message",
    "<|content_invoke_tool_text|>": "text",
    "<|content_tool_error|>": "text",
    "<|content_thinking|>": "reasoning",
    _CALL: "call",
}

INKLING = Dialect(
    names=("inkling",),
    answer_start="<|end_message|><|message_model|><|content_text|>",
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_BLOCKS, habits=Habits(names=(_CALL,))),
            "message": Span(SpanKind.TEXT, on=_BLOCKS),
            "reasoning": Span(SpanKind.REASONING, on=_BLOCKS),
            "call": JsonCalls(
                then="between", arguments=("args", "arguments", "parameters"), quotes=Quotes.ENTITIES
            ),
            "between": Span(SpanKind.MARKUP, on=_BLOCKS, habits=Habits(names=(_CALL,))),
        }
    ),
)
