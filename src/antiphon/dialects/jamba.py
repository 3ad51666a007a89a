"""AI21 Jamba: an array of calls inside one pair of tags.

<tool_calls>[
  {"name": "get_weather", "arguments": {"city": "Rome"}}
]</tool_calls>
"""

from antiphon.core.grammar import Grammar, JsonCalls, Kind, Span
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import TAGS

JAMBA = Dialect(
    names=("jamba",),
    calls=Grammar(
        {
            "text": Span(Kind.TEXT, on={"<tool_calls>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(Kind.MARKUP, on={"</tool_calls>": "text", "<tool_calls>": "call"}),
        }
    ),
    thoughts=TAGS,
)
