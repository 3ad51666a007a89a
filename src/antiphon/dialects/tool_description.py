"""Describes tools in a dialect's own format, for a model whose chat template lists none.

DeepSeek R1 and V3.1 were trained to call tools, and their templates describe none; and any dialect may be
chosen for a template of another maker. The example of a call is written by the dialect's table, and so are
earlier calls.
"""

from antiphon.constrain.arguments import UnsupportedSyntaxError
from antiphon.constrain.call_writer import CallWriter
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.render.tool_prompt import ToolPrompt

EXAMPLE_NAME, EXAMPLE_ARGUMENTS = "function_name", {"argument_name": "value"}
"""The call of the example: words that stand for others, and can be names in every format."""

_SYSTEM = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>

To call a function, write its name and its arguments in exactly this format, once for each call:
{% raw %}EXAMPLE{% endraw %}"""


def tool_prompt_of(dialect: Dialect) -> ToolPrompt | None:
    """How tools are described in this dialect: in its own words, if it has any. None if it has no calls."""
    if dialect.tool_prompt is not None or dialect.calls == TEXT:
        return dialect.tool_prompt
    try:
        writer = CallWriter(dialect.calls)
    except UnsupportedSyntaxError:
        return None
    system = _SYSTEM.replace("EXAMPLE", writer(EXAMPLE_NAME, EXAMPLE_ARGUMENTS))
    return ToolPrompt(system, writer, "<tool_response>\n{{ content }}\n</tool_response>")
