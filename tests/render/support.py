"""What the tests of `render` share."""

from typing import Any

from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Role, TextPart
from antiphon.core.turn import Function, Turn
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.render.tool_prompt import ToolPrompt

HERMES = ToolPrompt(
    system="# Tools\n\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>",
    call='<tool_call>\n{"name": {{ name | tojson }}, "arguments": {{ arguments | tojson }}}\n</tool_call>',
    result="<tool_response>\n{{ content }}\n</tool_response>",
)

CITY = {"type": "string", "description": "Where."}
WEATHER = Function("get_weather", "Tells the weather.", {"type": "object", "properties": {"city": CITY}})


def say(role: str, *texts: str) -> Message:
    return Message(Role(role), tuple(TextPart(text) for text in texts))


def call(call_id: str = "call_1", name: str = "get_weather", arguments: str = '{"city": "Zürich"}') -> Item:
    return FunctionCall(call_id, name, arguments)


def output(call_id: str = "call_1", text: str = "sunny") -> Item:
    return FunctionOutput(call_id, (TextPart(text),))


def renderer(source: str, tool_prompt: ToolPrompt | None = HERMES) -> ChatTemplateRenderer:
    return ChatTemplateRenderer(source, bos="<s>", eos="</s>", tool_prompt=tool_prompt)


def turn(*items: Item, **rest: Any) -> Turn:
    return Turn(model="m", items=items, **rest)
