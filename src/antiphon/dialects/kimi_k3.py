"""Kimi K3: everything between tags of three special tokens (XTML).

    <|open|>think<|sep|>I need the weather.<|close|>think<|sep|>
    <|open|>response<|sep|>Let me look.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>
    <|close|>message<|sep|>

There are no line breaks between them. A value of type `string` is verbatim text,
any other is JSON; attributes escape `&` and `"` as XML does. Calls have
the ids of Kimi K2, which the model does not write: `functions.NAME:INDEX`.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    Habits,
    Key,
    Name,
    ReasoningMarkers,
    Span,
    SpanKind,
    Value,
    unclosed,
)
from antiphon.decode.headers import JSON_TYPES, attribute_name, typed_key
from antiphon.decode.ids import kimi_call_id
from antiphon.dialects.dialect import Dialect

_END = {"<|close|>call<|sep|>": "called", "<|close|>tools<|sep|>": "text", "<|close|>message<|sep|>": "text"}

_TYPES = {name: name for name in JSON_TYPES}

KIMI_K3 = Dialect(
    names=("kimi_k3",),
    calls=Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on={
                    "<|open|>tools<|sep|>": "opening",
                    "<|open|>response<|sep|>": "text",
                    "<|close|>response<|sep|>": "text",
                    "<|close|>message<|sep|>": "text",
                },
                habits=Habits({"<|open|>call ": "bare"}),
            ),
            "opening": Span(
                SpanKind.OPENING,
                on={"<|open|>call ": "name", "<|close|>tools<|sep|>": "text"},
                otherwise="opening",
            ),
            "name": Name(
                on={"<|sep|>": "arguments"}, parse=attribute_name("tool", ' index="NUMBER"'), words=4
            ),
            "bare": Name(
                on={"<|sep|>": "arguments"},
                parse=attribute_name("tool", ' index="NUMBER"'),
                words=4,
                names=AcceptedNames.DECLARED,
            ),
            "arguments": Span(
                SpanKind.CALL, on={"<|open|>argument ": "key", "<|open|>call ": "name", **_END}
            ),
            "key": Key(
                on={"<|sep|>": "value"}, parse=typed_key("key", "type", texts="string", others=_TYPES)
            ),
            "value": Value(
                on={"<|close|>argument<|sep|>": "arguments"},
                habits=unclosed({"<|open|>argument ": "key", "<|close|>call<|sep|>": "called"}),
            ),
            "called": Span(
                SpanKind.MARKUP, on={"<|open|>call ": "name", "<|open|>tools<|sep|>": "opening", **_END}
            ),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|open|>think<|sep|>",),
        closes=("<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>message<|sep|>"),
        reopens=("<|open|>think<|sep|>",),
    ),
    ids=kimi_call_id,
)
