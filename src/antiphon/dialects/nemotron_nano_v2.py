"""Nemotron Nano v2: an array of calls inside one pair of tags.

<think>
I need the weather.
</think>

<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Rome"}}]</TOOLCALL>

The tags are ordinary text.
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

NEMOTRON_NANO_V2 = Dialect(
    names=("nemotron_nano_v2", "nemotron_json"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<TOOLCALL>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</TOOLCALL>": "text", "<TOOLCALL>": "call"}),
        }
    ),
    reasoning=THINK_TAGS,
)
