"""Calls as a Python list: Llama 3.2, ToolACE and Llama 4.

    [get_weather(city="Rome", days=3), now()]

The list is usually the whole answer. It has no marker, so it is a call only of functions
that the request offers. Llama 4 may write it between two tokens:

    <|python_start|>[get_weather(city="Rome")]<|python_end|>
"""

from antiphon.core.grammar import AcceptedNames, Grammar, PythonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect

PYTHONIC = Dialect(
    names=("pythonic",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, peek={"[": "calls"}),
            "calls": PythonCalls(then="text", names=AcceptedNames.DECLARED),
        }
    ),
)

LLAMA4_PYTHONIC = Dialect(
    names=("llama4_pythonic",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<|python_start|>": "calls"}, peek={"[": "unmarked"}),
            "unmarked": PythonCalls(then="called", names=AcceptedNames.DECLARED),
            "calls": PythonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"<|python_end|>": "text", "<|python_start|>": "calls"}),
        }
    ),
)
