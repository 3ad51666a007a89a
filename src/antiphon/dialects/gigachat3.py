"""GigaChat 3: each call is a separate message. Version 3.5 writes elements (GCML).

    Let me look.<|message_sep|>

    function call<|role_sep|>
    {"name": "get_weather", "arguments": {"city": "Rome"}}</s>

Version 3.1 writes `<|function_call|>` before the object instead. Version 3.5 writes what DeepSeek 3.2 does,
in other tags, and reasoning before it:

    <think>I need the weather.</think>

    <｜GCML｜tool_calls>
    <｜GCML｜invoke name="get_weather">
    <｜GCML｜parameter name="city" string="true">Rome</｜GCML｜parameter>
    </｜GCML｜invoke>
    </｜GCML｜tool_calls>
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.deepseek_v32 import DEEPSEEK_V32
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_OPENERS = {"function call<|role_sep|>": "call", "<|function_call|>": "call"}
_MESSAGES = {"<|message_sep|>": "between", **_OPENERS}

GIGACHAT3 = Dialect(
    names=("gigachat3",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_MESSAGES),
            "between": Span(SpanKind.MARKUP, on=_MESSAGES),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</s>": "text", **_MESSAGES}),
        },
        tokens=("<|role_sep|>", "</s>"),
    ),
)

GIGACHAT35 = Dialect(
    names=("gigachat35",),
    calls=DEEPSEEK_V32.calls.map_markers(
        lambda marker: marker.replace("DSML", "GCML").replace("function_calls", "tool_calls")
    ),
    reasoning=THINK_TOKENS,
)
