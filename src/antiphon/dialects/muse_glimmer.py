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
`user`, and calls to anyone else; messages to `developer` are for nobody here, and hidden. Muse Spark also
thinks in messages to nobody, and tells the user what it does in messages to `commentary`. Values are
verbatim; if the tool's schema does not state the type of one, it is JSON if it parses. Names of calls are
kept unchanged.

Models leave out `<|start|>assistant` after `<|eom|>`, and `<|eom|>` as well: then a header begins with `to=`
after space.
"""

from collections.abc import Mapping

from antiphon.core.grammar import Grammar, Habits, Header, Key, Name, Span, SpanKind, Value, unclosed
from antiphon.decode.headers import (
    bare_recipient_router,
    begins_bare_recipient,
    begins_recipient,
    is_cut_recipient,
    json_or_text_key,
    quoted_name,
    recipient_router,
)
from antiphon.dialects.dialect import Dialect

_ENDS = {"<|eom|>": "between", "<|eot|>": "between", "<|start|>": "header"}
_BARE_HEADERS = Habits(on={"\nto=": "bare_header", " to=": "bare_header"}, hidden=("<|message|>",))
_INVOKE = {"<atem:invoke name=": "name"}
_CLOSE = {"</atem:invoke>": "called", "</atem:function_calls>": "between"}


def _grammar(more: Mapping[str, str], nobody: str | None = None, **states: Span) -> Grammar:
    """The grammar of messages to `more` recipients, which lead to these states, and to `nobody`."""
    recipients = {"self": "reasoning", "user": "text", "developer": "hidden", **more}
    return Grammar(
        {
            "header": Header(
                ends=("<|message|>",),
                route=recipient_router(recipients, others="calls", nobody=nobody),
                is_cut=is_cut_recipient,
                begins=begins_recipient,
            ),
            "bare_header": Header(
                ends=("<|message|>",),
                route=bare_recipient_router(recipients, others="calls"),
                begins=begins_bare_recipient,
            ),
            "reasoning": Span(SpanKind.REASONING, on=_ENDS, habits=_BARE_HEADERS),
            "text": Span(SpanKind.TEXT, on=_ENDS, habits=_BARE_HEADERS),
            "hidden": Span(SpanKind.MARKUP, on=_ENDS, otherwise="hidden"),
            **states,
            "calls": Span(
                SpanKind.TEXT, on={**_ENDS, "<atem:function_calls>": "opening"}, habits=Habits(_INVOKE)
            ),
            "opening": Span(SpanKind.OPENING, on={**_INVOKE, "</atem:function_calls>": "between"}),
            "name": Name(on={">": "arguments"}, parse=quoted_name),
            "arguments": Span(
                SpanKind.CALL, on={"<atem:parameter name=": "key", **_INVOKE, **_CLOSE, **_ENDS}
            ),
            "key": Key(on={">": "value"}, parse=json_or_text_key),
            "value": Value(
                on={"</atem:parameter>": "arguments"},
                habits=unclosed({"<atem:parameter name=": "key", "</atem:invoke>": "called"}),
            ),
            "called": Span(SpanKind.MARKUP, on={**_INVOKE, **_CLOSE, **_ENDS}),
            "between": Span(
                SpanKind.MARKUP,
                on=_ENDS,
                otherwise="header",
                habits=Habits({"<atem:function_calls>": "opening"}),
            ),
        },
        start="header",
    )


MUSE_GLIMMER = Dialect(
    names=("muse_glimmer",),
    answer_start="<|eom|><|start|>assistant to=user<|message|>",
    call_start="<|eom|><|start|>assistant",
    calls=_grammar({}),
)

MUSE = Dialect(
    names=("muse", "musespark1x"),
    answer_start="<|eom|><|start|>assistant to=user<|message|>",
    call_start="<|eom|><|start|>assistant",
    calls=_grammar(
        {"commentary": "commentary"},
        nobody="reasoning",
        commentary=Span(SpanKind.TEXT, on=_ENDS, phase="commentary", habits=_BARE_HEADERS),
    ),
)
