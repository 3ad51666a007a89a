"""Renders a `Turn` to the prompt text.

`Renderer` is the interface. `ChatTemplateRenderer` uses the model's Jinja chat
template, or what takes its place: it is compiled and probed once (see `probe`), and each
conversation is converted to the form that it supports (see `messages`, `tool_prompt`).
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

from msgspec.structs import replace

from antiphon.core.conversation_template import ConversationTemplate
from antiphon.core.errors import RequestError
from antiphon.core.items import Message, Role, TextPart, text_in
from antiphon.core.turn import CallMode, Function, PromptEnding, Turn, role_parameter
from antiphon.render.capabilities import TemplateCapabilities
from antiphon.render.media import Marks, media_in
from antiphon.render.messages import NO_MARKS, TemplateMessage, arrange, format_message, gather
from antiphon.render.probe import probe_capabilities, turn_markers
from antiphon.render.sandbox import Template
from antiphon.render.special_tokens import SpecialTokenEscaper, restore_separators
from antiphon.render.tool_prompt import PLAIN_HISTORY, ToolPrompt, ToolPromptRenderer

CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""ChatML, the format that most models were trained with."""

BUILT_IN = {"chatml": CHATML}
"""Templates that have a name."""

ROLES = 64
"""The number of roles for which it is remembered whether a template knows them."""

_STARTS = {"add_generation_prompt": True}


MessageReader = Callable[[str], list[Mapping[str, Any]]]
"""A text that a model has read or written → its messages."""


class Renderer(Protocol):
    """Conversation → prompt. The placeholders of media have fences, see `media`."""

    @property
    def native_tools(self) -> Mapping[str, tuple[Function, ...]]:
        """The server's tools that the models were trained with: type of tool → its functions."""
        ...

    @property
    def read_messages(self) -> MessageReader | None:
        """Finds the messages of a prompt or an answer; None if it is shown as one text."""
        ...

    @property
    def kept_reasoning(self) -> Mapping[str, Any] | None:
        """The variables with which it shows the reasoning of earlier turns; None if it never does."""
        ...

    def render(self, turn: Turn) -> str:
        """The prompt, with special tokens, the ending that the turn asks for, and separators.

        Raises `RequestError` if the conversation cannot be rendered.
        """
        ...

    def transcript(self, turn: Turn) -> str:
        """The same, without the start of an answer."""
        ...


class ChatTemplateRenderer:
    """Renders with a Jinja chat template, or with a library in its place.

    `source` is the template. `bos` and `eos` are the texts of the tokens that begin
    and end a sequence. `tool_prompt` describes tools where the template does not.
    `content_parts` says whether contents are lists of parts, None to find out.
    Special tokens are escaped in text of clients (see `special_tokens`), not in the
    template's own: besides these, `special_tokens` and the markers of turns, but no `tags`.
    Raises `EngineError` if a template does not compile.
    """

    native_tools: Mapping[str, tuple[Function, ...]] = MappingProxyType({})
    read_messages: MessageReader | None = None

    def __init__(  # noqa: PLR0913 - what is known of a model
        self,
        source: str | ConversationTemplate,
        *,
        bos: str,
        eos: str,
        tool_prompt: ToolPrompt | None,
        content_parts: bool | None = None,
        special_tokens: frozenset[str] = frozenset(),
        tags: frozenset[str] = frozenset(),
    ) -> None:
        self._template = Template(source) if isinstance(source, str) else source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._has_tool_prompt = tool_prompt is not None
        self._escaper = SpecialTokenEscaper(bos, eos)
        self.capabilities: TemplateCapabilities = probe_capabilities(self._render_messages, content_parts)
        turns = turn_markers(self._render_messages, self.capabilities)
        own = (special_tokens | turns) - tags
        self._escaper = SpecialTokenEscaper(bos, eos, *own, *self.capabilities.media.values())
        self.kept_reasoning = self.capabilities.kept_reasoning
        self._knows_role = lru_cache(ROLES)(self._knows_role_now)
        self._writer = ToolPromptRenderer(tool_prompt or PLAIN_HISTORY, self._escaper)

    def render(self, turn: Turn) -> str:
        """Raises `RequestError` if neither template nor dialect describes tools."""
        match turn.ending:
            case PromptEnding.ANSWER:
                return self._render(self._at_end(turn), starts=True) + turn.prefix
            case PromptEnding.TRANSCRIPT:
                return self.transcript(turn) + turn.prefix
            case PromptEnding.CONTINUED:
                return open_transcript(self.transcript, turn) + turn.prefix

    def _at_end(self, turn: Turn) -> Turn:
        """The turn with its latest variables, if only the beginning of the answer shows them."""
        if not turn.later_variables:
            return turn
        latest = replace(turn, variables=turn.latest_variables)
        return latest if self.transcript(latest) == self.transcript(turn) else turn

    def transcript(self, turn: Turn) -> str:
        """Templates that always start an answer do so here, too."""
        return self._render(turn, starts=False)

    def _render(self, turn: Turn, *, starts: bool) -> str:
        for role in dict.fromkeys(item.template_role for item in turn.items if type(item) is Message):
            if role is not None and not self._knows_role(role):
                raise unknown_role(role)
        media = media_in(turn.items)
        marks = Marks(media) if media else NO_MARKS
        inputs = [*map(_tool, turn.listed_tools)], gather(turn.items, marks), dict(turn.variables)
        tools, gathered, variables = self._escaper.escape_json(inputs)
        messages = self._writer.write_history(gathered, self.capabilities)
        if tools and not self.capabilities.tools:
            messages = self._describe_tools(messages, tools, turn.tool_choice.calling)
        arranged = arrange(messages, self.capabilities, marks)
        variables["add_generation_prompt"] = starts
        effort = variables.get("reasoning_effort")
        if isinstance(effort, str) and effort in self.capabilities.efforts:
            variables["reasoning_effort"] = self.capabilities.efforts[effort]
        prompt = self._render_messages(arranged, tools, self.capabilities, variables, marks)
        if not marks.media:
            return prompt
        order = [number for message in arranged for number in marks.numbers(message["content"])]
        return marks.fenced(prompt, order, self.capabilities.media)

    def _knows_role_now(self, role: str) -> bool:
        """Whether the template renders a message of this role."""
        user, other = {"role": "user", "content": "linden hill"}, {"role": role, "content": "copper vale"}
        for messages in ([other, user], [user, other]):
            with suppress(RequestError):
                if other["content"] in self._render_messages(messages, (), self.capabilities):
                    return True
        return False

    def _describe_tools(
        self, messages: list[TemplateMessage], tools: list[dict[str, Any]], calling: CallMode
    ) -> list[TemplateMessage]:
        if not self._has_tool_prompt:
            if calling is CallMode.NONE:
                return messages
            raise RequestError("This model cannot call tools. Leave out `tools`.", param="tools")
        return self._writer.describe_tools(messages, tools)

    def _render_messages(
        self,
        messages: Sequence[TemplateMessage],
        tools: Sequence[Any],
        capabilities: TemplateCapabilities,
        more: Mapping[str, Any] = _STARTS,
        marks: Marks = NO_MARKS,
    ) -> str:
        # Last wins: template variables of a request cannot replace the messages, tools or tokens.
        formatted = [format_message(message, capabilities, self._escaper, marks) for message in messages]
        variables = {**more, "tools": [*tools] or None, "messages": formatted, **self._tokens}
        if capabilities.tools_undefined and not tools:
            del variables["tools"]
        return restore_separators(self._template.render(variables))


def unknown_role(role: str) -> RequestError:
    """The error for a role that the model's format does not have."""
    roles = ", ".join((*Role, "tool"))
    message = f"Unknown role '{role[:64]}': this model's chat template does not show it. Use one of: {roles}."
    return RequestError(message, param=role_parameter(role))


def open_transcript(transcript: Callable[[Turn], str], turn: Turn) -> str:
    """The transcript up to the end of the text of the last message, which must be the assistant's.

    Where that text ends in the transcript is found by appending a random suffix to it.
    Raises `RequestError` if the last message is not the assistant's, or empty.
    """
    *before, last = turn.items or (None,)
    if not isinstance(last, Message) or last.role is not Role.ASSISTANT or not text_in(last.parts[-1:]):
        raise RequestError(
            "Only an answer can be continued: the last message must be the assistant's, with text.",
            param="continue_final_message",
        )
    end = secrets.token_hex(8)
    marked = replace(last, parts=(*last.parts[:-1], TextPart(text_in(last.parts[-1:]) + end)))
    text = transcript(replace(turn, items=(*before, marked)))
    return text[: text.rindex(end)]


def _tool(function: Function) -> dict[str, Any]:
    """A tool as in OpenAI's API. Templates access optional fields without checks, so all are set."""
    described = {
        **function.more,
        "name": function.name,
        "description": function.description or "",
        "parameters": dict(function.parameters) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": described}
