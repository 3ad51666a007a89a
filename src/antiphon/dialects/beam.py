"""Beam: harmony's messages, with the arguments of calls as elements.

    <|channel|>analysis<|message|>I need the weather.<|end|>
    <|start|>assistant to=get_weather<|channel|>analysis <|constrain|>xml<|message|>
    <rfl:parameter name="city">
    Rome
    </rfl:parameter><|end|>
    <|start|>assistant to=get_time<|channel|>analysis <|constrain|>xml<|message|>
    <rfl:parameter name="zone">
    CET
    </rfl:parameter><|call|>

    <|channel|>final<|message|>It is sunny.<|return|>

There are no line breaks between them. The prompt ends with `<|start|>assistant`, so an answer begins inside
a header. A message with a recipient is a call of it. One newline on each side of a value is not part of it;
its closing tag may be missing. The last call ends with `<|call|>`.
"""

from antiphon.core.grammar import Grammar, Habits, Header, Key, Space, Span, SpanKind, Trim, Value
from antiphon.decode.headers import (
    begins_harmony_header,
    called_recipient_router,
    is_cut_harmony_header,
    quoted_key,
)
from antiphon.dialects.dialect import Dialect

_ENDS = {
    "<|call|>": "between",
    "<|end|>": "between",
    "<|return|>": "between",
    "<|start|>": "header",
    "<|channel|>": "header",
}

_HIDDEN = Habits(hidden=("<|message|>", "<|constrain|>"))

BEAM = Dialect(
    names=("beam",),
    answer_start="<|end|><|start|>assistant<|channel|>final<|message|>",
    call_start="<|end|><|start|>assistant",
    calls=Grammar(
        {
            "header": Header(
                ends=("<|message|>",),
                route=called_recipient_router(
                    {"analysis": "reasoning", "final": "final"},
                    guess="final",
                    call="arguments",
                    spelling="to=NAME<|channel|>analysis <|constrain|>xml",
                ),
                is_cut=is_cut_harmony_header,
                begins=begins_harmony_header("analysis", "final"),
            ),
            "reasoning": Span(SpanKind.REASONING, on=_ENDS, space=Space.TEXT, habits=_HIDDEN),
            "final": Span(SpanKind.TEXT, on=_ENDS, phase="final_answer", space=Space.TEXT, habits=_HIDDEN),
            "text": Span(SpanKind.TEXT, on=_ENDS, habits=_HIDDEN),
            "arguments": Span(SpanKind.CALL, on={"<rfl:parameter name=": "key", **_ENDS}),
            "key": Key(on={">": "value"}, parse=quoted_key),
            "value": Value(
                on={
                    "</rfl:parameter>": "arguments",
                    "\n<rfl:parameter name=": "key",
                    "<|end|>": "between",
                    "<|call|>": "between",
                },
                trim=Trim.NEWLINE,
            ),
            "between": Span(SpanKind.MARKUP, on=_ENDS, otherwise="header"),
        },
        start="header",
        tokens=("<|constrain|>",),
    ),
)
