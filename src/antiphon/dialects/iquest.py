"""IQuest Q1 and IQuest Coder: GLM's keys and values in a tag of their own.

    <think>I need the weather.</think>
    <iquest_tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Rome</arg_value>
    </iquest_tool_call>

IQuest Coder writes `<iquestcoder_tool_call>`.
"""

from antiphon.core.grammar import Grammar
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.glm45 import GLM45
from antiphon.dialects.think import THINK_TOKENS


def _in_tag(tag: str) -> Grammar:
    """The grammar of GLM with the tag of calls replaced."""
    return GLM45.calls.map_markers(lambda marker: marker.replace("tool_call>", f"{tag}>"))


IQUEST_Q1 = Dialect(names=("iquest_q1",), calls=_in_tag("iquest_tool_call"), reasoning=THINK_TOKENS)

IQUEST_CODER = Dialect(
    names=("iquestcoder", "iquest_coder"), calls=_in_tag("iquestcoder_tool_call"), reasoning=THINK_TOKENS
)
