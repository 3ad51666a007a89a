"""Turns a `Turn` into the text that the model goes on from.

`Renderer` is what a dialect gives to the run loop. `ChatTemplateRenderer` does
it with the model's own Jinja chat template, whatever that is: it is compiled
and probed once (see `traits`), and each conversation is brought into the form
that it takes (see `messages`, `tool_prompt`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from antiphon.core.errors import RequestError
from antiphon.core.turn import Function, Turn
from antiphon.render.messages import TemplateMessage, arrange, gather, shape
from antiphon.render.probe import find_traits
from antiphon.render.sandbox import Template
from antiphon.render.tool_prompt import PLAIN_HISTORY, ToolPrompt, ToolWriter
from antiphon.render.traits import Traits

CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""The template of a model that comes without one. Of all formats, the one that most models have seen."""


class Renderer(Protocol):
    """Conversation → prompt."""

    def render(self, turn: Turn) -> str:
        """The prompt, special tokens included, ending where the answer begins.

        Raises `RequestError` if the conversation cannot be rendered.
        """
        ...

    def transcript(self, turn: Turn) -> str:
        """The same, without the beginning of an answer: what was said so far."""
        ...


class ChatTemplateRenderer:
    """Renders with a Jinja chat template.

    `source` is the template, None for `CHATML`. `bos` and `eos` are the texts
    of the tokens that begin and end a sequence. `tool_prompt` teaches tools
    where the template does not. Raises `EngineError` if a template does not compile.
    """

    def __init__(self, source: str | None, *, bos: str, eos: str, tool_prompt: ToolPrompt | None) -> None:
        self._template = Template(CHATML if source is None else source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._teaches = tool_prompt is not None
        self._writer = ToolWriter(tool_prompt or PLAIN_HISTORY)
        self.traits: Traits = find_traits(self._render_messages)

    def render(self, turn: Turn) -> str:
        """See `Renderer`. `RequestError` on `tools` says that the model cannot be told of any."""
        return self._render(turn, {"add_generation_prompt": True})

    def transcript(self, turn: Turn) -> str:
        """See `Renderer`. Templates that always begin an answer do so here, too."""
        return self._render(turn, {"add_generation_prompt": False})

    def _render(self, turn: Turn, ending: Mapping[str, Any]) -> str:
        tools = [_tool(function) for function in turn.tools] if turn.calls else []
        messages = self._writer.write_history(gather(turn.items), self.traits)
        if tools and not self.traits.tools:
            messages = self._teach(messages, tools)
        arranged = arrange(messages, self.traits)
        return self._render_messages(arranged, tools, self.traits, {**turn.variables, **ending})

    def _teach(self, messages: list[TemplateMessage], tools: list[dict[str, Any]]) -> list[TemplateMessage]:
        if not self._teaches:
            raise RequestError("This model cannot call tools. Leave out `tools`.", param="tools")
        return self._writer.teach(messages, tools)

    def _render_messages(
        self,
        messages: Sequence[TemplateMessage],
        tools: Sequence[Any],
        traits: Traits,
        more: Mapping[str, Any] = {},
    ) -> str:
        # Last wins: a request cannot put its own messages or tokens in the place of these.
        shaped = [shape(message, traits) for message in messages]
        given = {"tools": list(tools) or None, "messages": shaped, **self._tokens}
        variables = {"add_generation_prompt": True, **more, **given}
        if traits.tools_absent and not tools:
            del variables["tools"]
        return self._template.render(variables)


def _tool(function: Function) -> dict[str, Any]:
    """As OpenAI writes a tool. Templates take apart what may be missing, so nothing is."""
    described = {
        "name": function.name,
        "description": function.description or "",
        "parameters": dict(function.parameters) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}
