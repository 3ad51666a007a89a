"""Calls as Python, one on each line: OLMo 3.

    <think>
    I need the weather.
    </think>

    <function_calls>
    get_weather(city="Rome", days=3)
    now()
    </function_calls>

JSON's literals (`true`, `null`) are accepted for Python's, and calls in JSON.
"""

from antiphon.core.grammar import Grammar, Habits, JsonCalls, PythonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

_JSON = {"{": "json", "[{": "json"}

OLMO3 = Dialect(
    names=("olmo3",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<function_calls>": "opening"}),
            "opening": Span(SpanKind.OPENING, otherwise="calls", habits=Habits(peek=_JSON)),
            "calls": PythonCalls(then="called"),
            "json": JsonCalls(then="called"),
            "called": Span(
                SpanKind.MARKUP,
                on={"</function_calls>": "text", "<function_calls>": "opening"},
                habits=Habits(peek=_JSON),
            ),
        }
    ),
    reasoning=THINK_TAGS,
)
