"""Kimi K2 and K2.5: the header of a call is its id.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
    {"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>

There are no line breaks between them. The number counts the calls of the whole
conversation. The section's tokens also come in the singular. Some text between a section and its call is
skipped.
"""

from antiphon.core.grammar import Grammar, Habits, JsonArguments, Name, Span, SpanKind
from antiphon.decode.headers import kimi_name
from antiphon.decode.ids import kimi_call_id
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_CALL = {"<|tool_call_begin|>": "name"}
_SECTION = {"<|tool_calls_section_begin|>": "section", "<|tool_call_section_begin|>": "section", **_CALL}
_END = {"<|tool_calls_section_end|>": "text", "<|tool_call_section_end|>": "text"}

KIMI_K2 = Dialect(
    names=("kimi_k2",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_SECTION, habits=Habits(hidden=("<|tool_call_end|>", *_END))),
            "section": Span(SpanKind.OPENING, on={**_CALL, **_END}, otherwise="section"),
            "name": Name(
                on={"<|tool_call_argument_begin|>": "arguments"},
                parse=kimi_name,
                habits={"<|tool_call_end|>": "called"},
            ),
            "arguments": JsonArguments(then="called"),
            "called": Span(SpanKind.MARKUP, on={"<|tool_call_end|>": "called", **_SECTION, **_END}),
        }
    ),
    reasoning=THINK_TOKENS,
    ids=kimi_call_id,
)
