"""Calls between braces, without quotes: FunctionGemma and Gemma 4.

    <start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>

    <|channel>thought
    I need the weather.
    <channel|><|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3,options:{a:[1]}}<tool_call|>

Keys are bare, or between the tokens that delimit strings. A bare value has the type
in the schema, or else the one it looks like. FunctionGemma puts every value between `<escape>`, so that the
schema states the type of those, too. If the engine drops `<|channel>`, the answer begins with `thought`.
Channels come in any place: the template removes each from an earlier answer.

Models leave out `call:`, the braces of a call without arguments, the label `thought`, commas and delimiters,
and write `f(key=value)` and quotes of JSON or Python (`decode/brace_arguments.py`). So only the closing
token ends a call: what is between its arguments and that is no text.
"""

from antiphon.core.grammar import BraceArguments, Grammar, Name, ReasoningMarkers, Span, SpanKind
from antiphon.decode.headers import prefixed_name
from antiphon.dialects.dialect import Dialect

_CALL = r"\s*(?:(?:call\s*)?:|(?=[\w.-]+\s*\Z))"

_CLOSERS = {"<tool_call|>": "called", "<|tool_call>": "name", "<|tool_response>": "text"}

FUNCTIONGEMMA = Dialect(
    names=("functiongemma",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<start_function_call>": "name"}),
            "name": Name(
                on={"{": "arguments"},
                parse=prefixed_name(_CALL, "call:NAME"),
                words=2,
                habits={"(": "parameters", "<end_function_call>": "text"},
            ),
            "arguments": BraceArguments(then="closing", quote="<escape>"),
            "parameters": BraceArguments(then="closing", quote="<escape>", close=")"),
            "closing": Span(
                SpanKind.MARKUP,
                on={"<end_function_call>": "text", "<start_function_call>": "name"},
                otherwise="closing",
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
            "name": Name(
                on={"{": "arguments"},
                parse=prefixed_name(_CALL, "call:NAME"),
                words=2,
                habits={"(": "parameters", "<tool_call|>": "called"},
            ),
            "arguments": BraceArguments(then="closing", quote='<|"|>', quoted="string"),
            "parameters": BraceArguments(then="closing", quote='<|"|>', quoted="string", close=")"),
            "closing": Span(SpanKind.MARKUP, on=_CLOSERS, otherwise="closing"),
            "called": Span(SpanKind.MARKUP, on=_CLOSERS),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|channel>thought", "thought\n"),
        closes=("<channel|>",),
        reopens=("<|channel>thought",),
        habits=("<|channel>",),
    ),
)
