"""Muse Glimmer: messages with a recipient; what goes to a tool holds calls as elements.

    to=self<|message|>I need the weather.<|eom|>
    <|start|>assistant to=weather.get<|message|>
    <atem:function_calls>
    <atem:invoke name="weather.get">
    <atem:parameter name="city">Rome</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>It is sunny.<|eot|>

There are no line breaks after `<|eom|>`. The prompt ends with `<|start|>assistant`,
so an answer begins inside of a header. Thoughts are sent to `self`, answers to
`user`, and calls to anyone else. Values are verbatim; what one is that the
tool's schema does not tell, its text does. The name of a call is kept as it stands.
"""

from antiphon.core.grammar import Grammar, Header, Key, Kind, Name, Span, Value
from antiphon.decode.headers import addressed, guessed_key, quoted
from antiphon.dialects.dialect import Dialect

_ENDS = {"<|eom|>": "between", "<|eot|>": "between", "<|start|>": "header"}
_INVOKE = {"<atem:invoke name=": "name"}
_CLOSE = {"</atem:invoke>": "called", "</atem:function_calls>": "between"}

MUSE_GLIMMER = Dialect(
    names=("muse_glimmer",),
    answering="<|eom|><|start|>assistant to=user<|message|>",
    calls=Grammar(
        {
            "header": Header(
                ends=("<|message|>",),
                route=addressed({"self": "thinking", "user": "text"}, others="calls"),
            ),
            "thinking": Span(Kind.REASONING, on=_ENDS),
            "text": Span(Kind.TEXT, on=_ENDS),
            "calls": Span(Kind.TEXT, on={**_ENDS, "<atem:function_calls>": "opening"}),
            "opening": Span(Kind.OPENING, on={**_INVOKE, "</atem:function_calls>": "between"}),
            "name": Name(on={">": "arguments"}, form=quoted),
            "arguments": Span(Kind.CALL, on={"<atem:parameter name=": "key", **_INVOKE, **_CLOSE, **_ENDS}),
            "key": Key(on={">": "value"}, form=guessed_key),
            "value": Value(on={"</atem:parameter>": "arguments"}),
            "called": Span(Kind.MARKUP, on={**_INVOKE, **_CLOSE, **_ENDS}),
            "between": Span(Kind.MARKUP, on=_ENDS),
        },
        start="header",
    ),
)
