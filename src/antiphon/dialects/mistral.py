"""Mistral, all versions of its tokenizer.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}]

    [THINK]I need the weather.[/THINK]
    [TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Rome"}

Up to version 10 one array follows the marker. From 11 on each call has a
marker, with the name after it; `[ARGS]` and the id may be missing. No
marker closes a call. The array may come without a marker if the output was constrained; then
it is a call only of the request's functions. Reasoning and text come in any order.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    JsonArguments,
    JsonCalls,
    Name,
    ReasoningMarkers,
    Span,
    SpanKind,
)
from antiphon.decode.headers import mistral_name
from antiphon.decode.ids import mistral_call_id
from antiphon.dialects.dialect import Dialect

_CALLS = {"[TOOL_CALLS]": "opening"}

MISTRAL = Dialect(
    names=("mistral",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_CALLS, peek={"[": "bare"}),
            "opening": Span(SpanKind.OPENING, peek={"[": "array", "{": "array"}, otherwise="name"),
            "array": JsonCalls(then="called"),
            "bare": JsonCalls(then="called", names=AcceptedNames.DECLARED),
            "name": Name(on={"[ARGS]": "arguments"}, peek={"{": "arguments"}, parse=mistral_name),
            "arguments": JsonArguments(then="called"),
            "called": Span(SpanKind.MARKUP, on=_CALLS),
        },
        tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    reasoning=ReasoningMarkers(
        opens=("[THINK]", "<think>"), closes=("[/THINK]", "</think>"), reopens=("[THINK]",)
    ),
    ids=mistral_call_id,
)
