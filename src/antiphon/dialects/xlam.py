"""Salesforce xLAM: an array of calls, alone or after one of several markers.

    [{"name": "get_weather", "arguments": {"city": "Rome"}}]

Others are a fence (```json), `[TOOL_CALLS]` and `<tool_call>`. Without a marker
the array is a call only at the start of an answer. There, and in a fence, it is a
call only of functions that the request offers.
"""

from antiphon.core.grammar import AcceptedNames, Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

_OPENERS = {"[TOOL_CALLS]": "call", "<tool_call>": "call", "```json": "fenced"}

XLAM = Dialect(
    names=("xlam",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_OPENERS, peek={"[": "bare"}),
            "bare": JsonCalls(then="text", names=AcceptedNames.DECLARED),
            "fenced": JsonCalls(then="fence", names=AcceptedNames.DECLARED),
            "fence": Span(SpanKind.MARKUP, on={"```": "text"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</tool_call>": "text", **_OPENERS}),
        }
    ),
    reasoning=THINK_TAGS,
)
