"""Calls as Python, one on each line: OLMo 3.

    <think>
    I need the weather.
    </think>

    <function_calls>
    get_weather(city="Rome", days=3)
    now()
    </function_calls>

JSON's literals (`true`, `null`) are accepted for Python's.
"""

from antiphon.core.grammar import Grammar, PythonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

OLMO3 = Dialect(
    names=("olmo3",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<function_calls>": "calls"}),
            "calls": PythonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</function_calls>": "text", "<function_calls>": "calls"}),
        }
    ),
    reasoning=THINK_TAGS,
)
