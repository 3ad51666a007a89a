"""Calls between braces, without quotes: FunctionGemma and Gemma 4.

    <start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>

    <|channel>thought
    I need the weather.
    <channel|><|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3,options:{a:[1]}}<tool_call|>

Keys are bare, or between the tokens that delimit strings. A bare value has the type
in the schema, or else the one it looks like. `call` may be missing before the
colon, and Gemma 4 has been seen to write `(` and `)` for the braces. FunctionGemma
puts every value between `<escape>`, so that the schema states the type of those, too.
If the engine drops `<|channel>`, the answer begins with `thought`. Channels come in any
place: the template removes each from an earlier answer.
"""

from antiphon.core.grammar import BraceArguments, Grammar, Name, ReasoningMarkers, Span, SpanKind
from antiphon.decode.headers import prefixed_name
from antiphon.dialects.dialect import Dialect

_CALL = r"\s*(?:call\s*)?:"

FUNCTIONGEMMA = Dialect(
    names=("functiongemma",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<start_function_call>": "name"}),
            "name": Name(on={"{": "arguments"}, parse=prefixed_name(_CALL, "call:NAME")),
            "arguments": BraceArguments(then="called", quote="<escape>"),
            "called": Span(
                SpanKind.MARKUP, on={"<end_function_call>": "text", "<start_function_call>": "name"}
            ),
        },
        tokens=("<start_function_call>", "<escape>", "<end_function_call>"),
    ),
)

GEMMA4 = Dialect(
    names=("gemma4",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<|tool_call>": "name"}),
            "name": Name(on={"{": "arguments", "(": "parameters"}, parse=prefixed_name(_CALL, "call:NAME")),
            "arguments": BraceArguments(then="called", quote='<|"|>', quoted="string"),
            "parameters": BraceArguments(then="called", quote='<|"|>', quoted="string", close=")"),
            "called": Span(
                SpanKind.MARKUP,
                on={"<tool_call|>": "called", "<|tool_call>": "name", "<|tool_response>": "text"},
            ),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|channel>thought", "thought\n"), closes=("<channel|>",), reopens=("<|channel>thought",)
    ),
)
