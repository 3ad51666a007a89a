"""AI21 Jamba and MiniMax M1: calls inside one pair of tags, as an array or line by line.

<tool_calls>[
  {"name": "get_weather", "arguments": {"city": "Rome"}}
]</tool_calls>

<tool_calls>
{"name": "get_weather", "arguments": {"city": "Rome"}}
{"name": "get_time", "arguments": {"zone": "CET"}}
</tool_calls>
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

JAMBA = Dialect(
    names=("jamba", "minimax"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<tool_calls>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(
                SpanKind.MARKUP, on={"</tool_calls>": "text", "<tool_calls>": "call"}, peek={"{": "call"}
            ),
        }
    ),
    reasoning=THINK_TAGS,
)
