"""InternLM 2, 2.5 and Intern-S1: a call as the action of a plugin.

Let me look.<|action_start|><|plugin|>
{"name": "get_weather", "parameters": {"city": "Rome"}}<|action_end|>
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TAGS

INTERNLM = Dialect(
    names=("internlm", "interns1"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<|action_start|>": "action"}),
            "action": Span(SpanKind.OPENING, on={"<|plugin|>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"<|action_end|>": "text", "<|action_start|>": "action"}),
        }
    ),
    reasoning=THINK_TAGS,
)
