"""ERNIE 4.5: Hermes calls; an answer after reasoning may be inside a tag.

<think>
I need the weather.
</think>

<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome"}}
</tool_call>

<think>
It is sunny.
</think>

<response>
Sunny.
</response>
"""

from antiphon.core.grammar import Grammar, Habits, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

ERNIE45 = Dialect(
    names=("ernie45",),
    calls=Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on={"<tool_call>": "call"},
                first={"<response>": "response"},
                habits=Habits(on={"</response>": "text"}),
            ),
            "response": Span(SpanKind.TEXT, on={"</response>": "text", "<tool_call>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</tool_call>": "text", "<tool_call>": "call"}),
        }
    ),
    reasoning=THINK_TOKENS,
)
