"""Calls as a Python list: Llama 3.2, ToolACE and Llama 4.

    [get_weather(city="Rome", days=3), now()]

The list is usually the whole answer; models also write text before it, on lines of its own. It has no
marker, so it is a call only of functions that the request offers. Llama 4 may write it between two tokens,
or JSON instead:

    <|python_start|>[get_weather(city="Rome")]<|python_end|>
"""

from antiphon.core.grammar import AcceptedNames, Grammar, Habits, JsonCalls, PythonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect

_LINE = Habits(on={"\n[": "line"})

PYTHONIC = Dialect(
    names=("pythonic",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, peek={"[": "calls"}, habits=_LINE),
            "calls": PythonCalls(then="text", names=AcceptedNames.DECLARED),
            "line": PythonCalls(then="text", names=AcceptedNames.DECLARED, opening="["),
        }
    ),
)

_START = {"<|python_start|>": "opening"}
_JSON = {"{": "json", "[{": "json"}

LLAMA4_PYTHONIC = Dialect(
    names=("llama4_pythonic",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_START, peek={"[": "unmarked"}, habits=_LINE),
            "unmarked": PythonCalls(then="called", names=AcceptedNames.DECLARED),
            "line": PythonCalls(then="called", names=AcceptedNames.DECLARED, opening="["),
            "opening": Span(SpanKind.OPENING, otherwise="calls", habits=Habits(peek=_JSON)),
            "calls": PythonCalls(then="called"),
            "json": JsonCalls(then="called"),
            "called": Span(
                SpanKind.MARKUP,
                on={"<|python_end|>": "text", **_START},
                habits=Habits(on={";": "json"}, peek=_JSON),
            ),
        }
    ),
)
