"""Muse Glimmer and Muse Spark: messages with a recipient; those to a tool have calls as elements.

    to=self<|message|>I need the weather.<|eom|>
    <|start|>assistant to=weather.get<|message|>
    <atem:function_calls>
    <atem:invoke name="weather.get">
    <atem:parameter name="city">Rome</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>It is sunny.<|eot|>

There are no line breaks after `<|eom|>`. The prompt ends with `<|start|>assistant`,
so an answer begins inside a header. Reasoning is sent to `self`, answers to
`user`, and calls to anyone else. Muse Spark also thinks in messages to nobody, tells the user what it does in
messages to `commentary`, and writes messages to `developer`, which nobody sees. Values are verbatim; if the
tool's schema does not state the type of one, it is JSON if it parses. Names of calls are kept unchanged.
"""

from antiphon.core.grammar import Grammar, Header, Key, Name, Router, Span, SpanKind, Value
from antiphon.decode.headers import json_or_text_key, quoted_name, recipient_router
from antiphon.dialects.dialect import Dialect

_ENDS = {"<|eom|>": "between", "<|eot|>": "between", "<|start|>": "header"}
_INVOKE = {"<atem:invoke name=": "name"}
_CLOSE = {"</atem:invoke>": "called", "</atem:function_calls>": "between"}


def _grammar(route: Router, **more: Span) -> Grammar:
    """The grammar of messages that are routed so. `more` are further states that they lead to."""
    return Grammar(
        {
            "header": Header(ends=("<|message|>",), route=route),
            "reasoning": Span(SpanKind.REASONING, on=_ENDS),
            "text": Span(SpanKind.TEXT, on=_ENDS),
            **more,
            "calls": Span(SpanKind.TEXT, on={**_ENDS, "<atem:function_calls>": "opening"}),
            "opening": Span(SpanKind.OPENING, on={**_INVOKE, "</atem:function_calls>": "between"}),
            "name": Name(on={">": "arguments"}, parse=quoted_name),
            "arguments": Span(
                SpanKind.CALL, on={"<atem:parameter name=": "key", **_INVOKE, **_CLOSE, **_ENDS}
            ),
            "key": Key(on={">": "value"}, parse=json_or_text_key),
            "value": Value(on={"</atem:parameter>": "arguments"}),
            "called": Span(SpanKind.MARKUP, on={**_INVOKE, **_CLOSE, **_ENDS}),
            "between": Span(SpanKind.MARKUP, on=_ENDS),
        },
        start="header",
    )


MUSE_GLIMMER = Dialect(
    names=("muse_glimmer",),
    answer_start="<|eom|><|start|>assistant to=user<|message|>",
    calls=_grammar(recipient_router({"self": "reasoning", "user": "text"}, others="calls")),
)

MUSE = Dialect(
    names=("muse", "musespark1x"),
    answer_start="<|eom|><|start|>assistant to=user<|message|>",
    calls=_grammar(
        recipient_router(
            {"self": "reasoning", "user": "text", "commentary": "commentary", "developer": "dropped"},
            others="calls",
            nobody="reasoning",
        ),
        commentary=Span(SpanKind.TEXT, on=_ENDS, phase="commentary"),
        dropped=Span(SpanKind.MARKUP, on=_ENDS, otherwise="dropped"),
    ),
)
