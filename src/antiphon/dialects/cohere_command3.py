"""Cohere Command R7B, A and later: calls, answers and reasoning, each between tokens.

    <|START_THINKING|>I need the weather.<|END_THINKING|><|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome"}}
    ]<|END_ACTION|>

    <|START_RESPONSE|>Sunny.<|END_RESPONSE|>

Command A+ writes `<|START_TEXT|>` for `<|START_RESPONSE|>`. The ids are the
model's own. Citations in an answer are kept as text.
"""

from antiphon.core.grammar import Grammar, JsonCalls, ReasoningMarkers, Span, SpanKind
from antiphon.dialects.dialect import Dialect

_ANSWERS = {
    "<|START_RESPONSE|>": "text",
    "<|END_RESPONSE|>": "text",
    "<|START_TEXT|>": "text",
    "<|END_TEXT|>": "text",
}

COHERE_COMMAND3 = Dialect(
    names=("cohere_command3", "cohere_command4"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<|START_ACTION|>": "call", **_ANSWERS}),
            "call": JsonCalls(
                then="called",
                name=("tool_name", "name"),
                arguments=("parameters", "arguments"),
                ids=("tool_call_id",),
            ),
            "called": Span(
                SpanKind.MARKUP, on={"<|END_ACTION|>": "text", "<|START_ACTION|>": "call", **_ANSWERS}
            ),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|START_THINKING|>",),
        closes=("<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
        reopens=("<|START_THINKING|>",),
    ),
)
