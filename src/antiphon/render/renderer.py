"""Turns a `Turn` into the text that the model goes on from.

`Renderer` is what a dialect gives to the run loop. `ChatTemplateRenderer` does
it with the model's own Jinja chat template, whatever that is: it is compiled
and probed once (see `traits`), and each conversation is brought into the form
that it takes (see `messages`, `tool_prompt`).
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace

from antiphon.core.errors import RequestError
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Calling, Ending, Function, Turn
from antiphon.render.messages import TemplateMessage, arrange, gather, shape
from antiphon.render.probe import find_traits
from antiphon.render.sandbox import Template
from antiphon.render.seams import Seams, unescape
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

    @property
    def trained(self) -> Mapping[str, tuple[Function, ...]]:
        """The server's tools that the models know by names of their own: type → what they are offered."""
        ...

    def render(self, turn: Turn) -> str:
        """The prompt, special tokens included, with the end that the turn asks for, and seams in it.

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
    where the template does not. What clients say is ordinary text, whatever tokens
    it spells (see `seams`); what the template writes is not.
    Raises `EngineError` if a template does not compile.
    """

    trained: Mapping[str, tuple[Function, ...]] = MappingProxyType({})

    def __init__(self, source: str | None, *, bos: str, eos: str, tool_prompt: ToolPrompt | None) -> None:
        self._template = Template(CHATML if source is None else source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._teaches = tool_prompt is not None
        self._seams = Seams(bos, eos)
        self._writer = ToolWriter(tool_prompt or PLAIN_HISTORY, self._seams)
        self.traits: Traits = find_traits(self._render_messages)

    def render(self, turn: Turn) -> str:
        """See `Renderer`. `RequestError` on `tools` says that the model cannot be told of any."""
        match turn.ending:
            case Ending.ANSWER:
                return self._render(turn, {"add_generation_prompt": True}) + turn.prefix
            case Ending.TRANSCRIPT:
                return self.transcript(turn) + turn.prefix
            case Ending.CONTINUED:
                return until_last_word(self.transcript, turn) + turn.prefix

    def transcript(self, turn: Turn) -> str:
        """See `Renderer`. Templates that always begin an answer do so here, too."""
        return self._render(turn, {"add_generation_prompt": False})

    def _render(self, turn: Turn, ending: Mapping[str, Any]) -> str:
        offered = turn.tools if turn.tool_choice.calling is not Calling.NONE else ()
        tools = self._seams.value([_tool(function) for function in offered])
        said = self._seams.value(gather(turn.items))
        messages = self._writer.write_history(said, self.traits)
        if tools and not self.traits.tools:
            messages = self._teach(messages, tools)
        arranged = arrange(messages, self.traits)
        variables = self._seams.value(dict(turn.variables))
        return self._render_messages(arranged, tools, self.traits, {**variables, **ending})

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
        shaped = [shape(message, traits, self._seams) for message in messages]
        given = {"tools": list(tools) or None, "messages": shaped, **self._tokens}
        variables = {"add_generation_prompt": True, **more, **given}
        if traits.tools_absent and not tools:
            del variables["tools"]
        return unescape(self._template.render(variables))


def until_last_word(transcript: Callable[[Turn], str], turn: Turn) -> str:
    """The transcript of a turn up to the last word of its last message, which must be the assistant's.

    What a renderer writes after a message is found by giving the message an
    end that nobody else writes. `RequestError` if there is no such message.
    """
    *before, last = turn.items or (None,)
    if not isinstance(last, Message) or last.role is not Role.ASSISTANT or not last.text:
        raise RequestError(
            "Only an answer can be continued: the last message must be the assistant's, and say something.",
            param="continue_final_message",
        )
    end = secrets.token_hex(8)
    marked = replace(last, parts=(*last.parts[:-1], TextPart(last.parts[-1].text + end)))
    text = transcript(replace(turn, items=(*before, marked)))
    return text[: text.rindex(end)]


def _tool(function: Function) -> dict[str, Any]:
    """As OpenAI writes a tool. Templates take apart what may be missing, so nothing is."""
    described = {
        "name": function.name,
        "description": function.description or "",
        "parameters": dict(function.parameters) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}
