"""JSON calls inside tags: Hermes, Qwen 2.5, Qwen 3, QwQ, Granite 4 and many more.

    <think>
    I need the weather.
    </think>

    Let me look.
    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Rome"}}
    </tool_call>

One block per call; some models write an array of calls into one block. The closing
tag may be missing.
"""

from antiphon.core.grammar import Grammar, JsonCalls, Span, SpanKind
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS
from antiphon.render.tool_prompt import ToolPrompt

HERMES = Dialect(
    names=("hermes", "qwen3_json", "qwen", "qwen25", "granite4", "trinity"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<tool_call>": "call"}),
            "call": JsonCalls(then="called"),
            "called": Span(SpanKind.MARKUP, on={"</tool_call>": "text", "<tool_call>": "call"}),
        }
    ),
    reasoning=THINK_TOKENS,
    tool_prompt=ToolPrompt(
        system="""\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>""",
        call="""\
<tool_call>
{"name": {{ name | tojson }}, "arguments": {{ arguments | tojson }}}
</tool_call>""",
        result="<tool_response>\n{{ content }}\n</tool_response>",
    ),
)
