"""Harmony: messages with headers, as the gpt-oss models write them.

    <|channel|>analysis<|message|>I need the weather.<|end|>
    <|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>
    {"city": "Rome"}<|call|>

    <|channel|>final<|message|>It is sunny.<|return|>

There are no line breaks between them. The prompt ends with `<|start|>assistant`,
so an answer begins inside a header. The channel and the recipient decide what
a message is; the recipient comes before or after the channel, and models write
it on any channel, without `functions.`, or followed by a token without space. Commentary
without a recipient is text to the user before a call. The code of `python` is
text, not JSON. Any of the closing tokens may be missing.

A message that is sent to a tool is a call of it, whether or not it was offered:
`python` with `{"code": …}`, `browser.search` and the like with their arguments, and one of any other
namespace. Where a header has no message, its special tokens are hidden and its words are text. Space at
both ends of a message is part of it.
"""

from antiphon.core.grammar import (
    Grammar,
    Habits,
    Header,
    JsonArguments,
    Space,
    Span,
    SpanKind,
    TextArguments,
)
from antiphon.decode.headers import begins_harmony_header, harmony_router, is_cut_harmony_header
from antiphon.dialects.dialect import Dialect
from antiphon.render.harmony import HarmonyRenderer

_ENDS = {
    "<|end|>": "between",
    "<|call|>": "between",
    "<|return|>": "between",
    "<|start|>": "header",
    "<|channel|>": "header",
}

_HIDDEN = Habits(hidden=("<|message|>", "<|constrain|>"))

OPENAI = Dialect(
    names=("openai", "gpt_oss", "gpt-oss", "openai_gptoss", "harmony"),
    answer_start="<|end|><|start|>assistant<|channel|>final<|message|>",
    call_start="<|end|><|start|>assistant",
    calls=Grammar(
        {
            "header": Header(
                ends=("<|message|>",),
                route=harmony_router(
                    {"analysis": "reasoning", "commentary": "preamble", "final": "final"},
                    guess="final",
                    arguments="arguments",
                    code="code",
                ),
                is_cut=is_cut_harmony_header,
                begins=begins_harmony_header("analysis", "commentary", "final"),
            ),
            "reasoning": Span(SpanKind.REASONING, on=_ENDS, space=Space.TEXT, habits=_HIDDEN),
            "preamble": Span(SpanKind.TEXT, on=_ENDS, phase="commentary", space=Space.TEXT, habits=_HIDDEN),
            "final": Span(SpanKind.TEXT, on=_ENDS, phase="final_answer", space=Space.TEXT, habits=_HIDDEN),
            "text": Span(SpanKind.TEXT, on=_ENDS, habits=_HIDDEN),
            "arguments": JsonArguments(then="between"),
            "code": TextArguments(on=_ENDS, key="code"),
            "between": Span(SpanKind.MARKUP, on=_ENDS, otherwise="header"),
        },
        start="header",
        tokens=("<|constrain|>",),
    ),
    renderer=HarmonyRenderer,
)
