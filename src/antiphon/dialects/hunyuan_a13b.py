"""Hunyuan A13B: an array of calls inside one pair of tags; reasoning and answers each in tags.

    <think>
    I need the weather.
    </think>
    <answer>
    Let me look.
    <tool_calls>[{"name": "get_weather", "arguments": {"city": "Rome"}}]</tool_calls>
    </answer>

The model writes tentative calls in its reasoning, so a call there is not a call. The
word for "Assistant:", in Chinese, before the answer is markup, and so is `</answer>` without its opening tag.
"""

from antiphon.core.grammar import Grammar, Habits, JsonCalls, ReasoningMarkers, Span, SpanKind
from antiphon.dialects.dialect import Dialect

_SPEAKER = "助手\uff1a"

HUNYUAN_A13B = Dialect(
    names=("hunyuan_a13b",),
    answer_start="\n</think>\n<answer>\n",
    calls=Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on={"<tool_calls>": "call"},
                first={"<answer>": "answer", _SPEAKER: "text"},
                habits=Habits(on={"</answer>": "text"}),
            ),
            "answer": Span(
                SpanKind.TEXT, on={"</answer>": "text", "<tool_calls>": "call"}, first={_SPEAKER: "answer"}
            ),
            "call": JsonCalls(then="called"),
            "called": Span(
                SpanKind.MARKUP, on={"</tool_calls>": "called", "<tool_calls>": "call", "</answer>": "text"}
            ),
        }
    ),
    reasoning=ReasoningMarkers(opens=("<think>",), closes=("</think>",), calls=False),
)
