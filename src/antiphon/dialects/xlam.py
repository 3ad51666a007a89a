"""Salesforce xLAM: an array of calls, as it stands or behind one of several markers.

    [{"name": "get_weather", "arguments": {"city": "Rome"}}]

Others are a fence (```json), `[TOOL_CALLS]` and `<tool_call>`. Without a marker
of its own the array is a call only at the beginning of an answer, and as a fence
is, only of functions that the request offers.
"""

from antiphon.core.grammar import Grammar, JsonCalls, Kind, Names, Span
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import TAGS

_OPENERS = {"[TOOL_CALLS]": "call", "<tool_call>": "call", "```json": "fenced"}

XLAM = Dialect(
    names=("xlam",),
    calls=Grammar(
        {
            "text": Span(Kind.TEXT, on=_OPENERS, peek={"[": "bare"}),
            "bare": JsonCalls(then="text", names=Names.DECLARED),
            "fenced": JsonCalls(then="fence", names=Names.DECLARED),
            "fence": Span(Kind.MARKUP, on={"```": "text"}),
            "call": JsonCalls(then="called"),
            "called": Span(Kind.MARKUP, on={"</tool_call>": "text", **_OPENERS}),
        }
    ),
    thoughts=TAGS,
)
