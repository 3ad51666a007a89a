"""Solar Open 2: calls as a name, keys and values between tokens.

    <|think:start|>I need the weather.<|think:end|>
    <|tool_call:start|>get_weather
    <|tool_arg:start|>city<|tool_arg:value|>Rome<|tool_arg:end|>
    <|tool_call:end|>

One block per call. Values are verbatim. The token that ends a value or a call may be missing.
"""

from antiphon.core.grammar import Grammar, Key, Name, ReasoningMarkers, Span, SpanKind, Value, unclosed
from antiphon.decode.headers import plain_key, plain_name
from antiphon.dialects.dialect import Dialect

_CALL = {"<|tool_call:start|>": "name"}
_NEXT = {"<|tool_arg:start|>": "key", "<|tool_call:end|>": "text", **_CALL}

SOLAR_OPEN2 = Dialect(
    names=("solar_open2",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_CALL),
            "name": Name(on={"<|tool_arg:start|>": "key", "<|tool_call:end|>": "text"}, parse=plain_name),
            "key": Key(on={"<|tool_arg:value|>": "value"}, parse=plain_key),
            "value": Value(on={"<|tool_arg:end|>": "arguments", **unclosed(_NEXT)}),
            "arguments": Span(SpanKind.CALL, on=_NEXT),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|think:start|>",), closes=("<|think:end|>",), reopens=("<|think:start|>",)
    ),
)
