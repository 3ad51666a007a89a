"""Renders harmony, the prompt format of gpt-oss: messages with headers, on channels.

    <|start|>system<|message|>You are ChatGPT, … Reasoning: medium …<|end|>
    <|start|>developer<|message|># Instructions … # Tools … # Response Formats …<|end|>
    <|start|>user<|message|>How is the weather?<|end|>
    <|start|>assistant<|channel|>analysis<|message|>I need a call.<|end|>
    <|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{}<|call|>
    <|start|>functions.weather to=assistant<|channel|>commentary<|message|>sunny<|end|>
    <|start|>assistant

There are no line breaks between them. The system message is the server's; a client's
system messages become developer messages. Reasoning is rendered until an answer on the
final channel follows it: harmony's guide keeps it between calls, and drops it afterwards.

Special tokens are escaped in all text of a client (see `special_tokens`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date as calendar
from itertools import pairwise, takewhile
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.core.constraint import Format, JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.items import (
    FunctionCall,
    FunctionOutput,
    Item,
    MediaPart,
    Message,
    Part,
    Reasoning,
    Role,
    text_in,
)
from antiphon.core.turn import Function, PromptEnding, Turn
from antiphon.render.harmony_messages import read_messages
from antiphon.render.harmony_tools import (
    BROWSER,
    CONTAINER,
    FUNCTIONS,
    NATIVE,
    PYTHON,
    Namespace,
    comment,
    tools_section,
)
from antiphon.render.messages import PARAGRAPH
from antiphon.render.renderer import MessageReader, open_transcript, unknown_role
from antiphon.render.special_tokens import GENERIC_ESCAPER

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"

ANSWER = "<|start|>assistant"
"""The generation prompt. It ends inside a header, so that the model chooses the channel."""

_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_CALLS = f"Calls to these tools must go to the commentary channel: '{FUNCTIONS}'."

EFFORTS = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""The API's reasoning effort → the model's."""

_NOT_IN_NAMES = re.compile(r"[\s\"'<>{}()\[\],=|]")
# Characters that would end a name or a header, or start another part of it.


class HarmonyRenderer:
    """Renders harmony without a chat template.

    `date` is the current date in the prompt, ISO 8601, by default the date of creation. It
    stays the same for every prompt, or prefix caches would miss. `built_in` are the
    namespaces that a turn may offer beside functions: those of tools that the server
    runs, and those that the client runs and names in the template variable
    `builtin_tools`. The variables `reasoning_effort` and `model_identity` are used, too.
    """

    native_tools: Mapping[str, tuple[Function, ...]] = NATIVE
    read_messages: MessageReader | None = staticmethod(read_messages)
    kept_reasoning: Mapping[str, Any] | None = None

    def __init__(
        self, date: str | None = None, built_in: Iterable[Namespace] = (BROWSER, CONTAINER, PYTHON)
    ) -> None:
        self._date = date or calendar.today().isoformat()
        self._built_in = {namespace.name: namespace for namespace in built_in}

    def render(self, turn: Turn) -> str:
        """A prefix starts the answer on the final channel, without reasoning before it."""
        match turn.ending:
            case PromptEnding.ANSWER if turn.prefix:
                return self.transcript(turn) + _open(f"{ANSWER}<|channel|>final", turn.prefix)
            case PromptEnding.ANSWER:
                return self.transcript(turn) + ANSWER
            case PromptEnding.TRANSCRIPT:
                return self.transcript(turn) + GENERIC_ESCAPER.escape(turn.prefix)
            case PromptEnding.CONTINUED:
                return open_transcript(self.transcript, turn) + GENERIC_ESCAPER.escape(turn.prefix)

    def transcript(self, turn: Turn) -> str:
        """Raises `RequestError` for what the format cannot express."""
        functions = [tool for tool in turn.listed_tools if not _is_native(tool)]
        native = [tool for tool in turn.listed_tools if _is_native(tool)]
        leading = [item for item in takewhile(_is_instruction, turn.items) if isinstance(item, Message)]
        messages = [
            _message("system", self._system(turn.variables, functions, native)),
            *_developer(_instructions(leading), functions, turn.listed_format),
            *self._history(turn, len(leading)),
        ]
        return "".join(messages)

    def _system(
        self, variables: Mapping[str, Any], functions: Sequence[Function], native: Sequence[Function]
    ) -> str:
        identity = variables.get("model_identity") or IDENTITY
        tools = self._offered(variables.get("builtin_tools") or (), native)
        sections = [
            f"{identity}\nKnowledge cutoff: {KNOWLEDGE_CUTOFF}\nCurrent date: {self._date}",
            f"Reasoning: {_effort(variables.get('reasoning_effort'))}",
            *([tools_section(tools)] if tools else []),
            f"{_CHANNELS}\n{_CALLS}" if functions else _CHANNELS,
        ]
        return PARAGRAPH.join(sections)

    def _offered(self, names: Any, native: Sequence[Function]) -> list[Namespace]:
        """The built-in tools of these names, the client's and the server's, sorted by name.

        Of the server's only the functions that may be called are described. A description of the server's is
        appended to the one that the models were trained with.
        """
        built_in = self._built_in.keys()
        if not isinstance(names, list | tuple) or not all(str(name) in built_in for name in names):
            message = f"Unknown built-in tools. Give a list of some of: {', '.join(sorted(built_in))}."
            raise RequestError(message, param="builtin_tools")
        descriptions = {tool.name: tool.description for tool in native}
        requested = {*names, *(_namespace_of(tool.name) for tool in native)}
        namespaces = []
        for name in sorted(built_in & requested):
            namespace = _with(self._built_in[name], descriptions.get(name))
            if name not in names:
                allowed = [
                    function for function in namespace.functions if f"{name}.{function.name}" in descriptions
                ]
                namespace = replace(namespace, functions=(*allowed,))
            namespaces.append(namespace)
        return namespaces

    def _history(self, turn: Turn, start: int) -> Iterator[str]:
        """The messages from `start` on, without reasoning before the last final answer."""
        declared = {tool.name for tool in turn.tools if not _is_native(tool)}
        callers: dict[str, tuple[str, str]] = {}
        last_answer = _last_answer(turn)
        for index, (item, following) in enumerate(pairwise((*turn.items, None))):
            match item:
                case _ if index < start:
                    pass
                case Message():
                    yield _render_message(item, following)
                case Reasoning() if index > last_answer:
                    yield _message("assistant<|channel|>analysis", item.text)
                case FunctionCall():
                    callers[item.call_id] = self._address(item.name, declared)
                    yield self._call(item, *callers[item.call_id])
                case FunctionOutput():
                    recipient, channel = callers.get(item.call_id) or self._caller(item.name, declared)
                    yield _message(f"{recipient} to=assistant<|channel|>{channel}", _text(item.parts))

    def _address(self, name: str, declared: set[str]) -> tuple[str, str]:
        """The recipient and the channel of calls of a function."""
        word = _header_word(name)
        if name not in declared and _namespace_of(word) in self._built_in:
            return word, "analysis"
        return f"{FUNCTIONS}.{word}", "commentary"

    def _call(self, call: FunctionCall, recipient: str, channel: str) -> str:
        namespace = self._built_in.get(recipient)
        code = _code(call.arguments) if namespace and not namespace.functions else None
        kind, body = ("json", call.arguments) if code is None else ("code", code)
        return _message(f"assistant to={recipient}<|channel|>{channel} {kind}", body, "<|call|>")

    def _caller(self, name: str | None, declared: set[str]) -> tuple[str, str]:
        """The address of a result whose call is not in the conversation."""
        return self._address(name, declared) if name else (FUNCTIONS, "commentary")


def _text(parts: Iterable[Part]) -> str:
    """The parts of one message. Raises RequestError for media: the format has no place for them."""
    for part in parts:
        if isinstance(part, MediaPart):
            raise RequestError(f"This model's format takes no {part.kind}. Leave it out.", param=part.param)
    return text_in(parts, "\n")


def _with(namespace: Namespace, more: str | None) -> Namespace:
    """The namespace with `more` appended to its description."""
    return replace(namespace, description=f"{namespace.description}{PARAGRAPH}{more}") if more else namespace


def _open(header: str, text: str) -> str:
    return f"{header}<|message|>{GENERIC_ESCAPER.escape(text)}"


def _message(header: str, text: str, end: str = "<|end|>") -> str:
    return f"<|start|>{_open(header, text)}{end}"


def _developer(instructions: str, functions: Sequence[Function], format_: Format | None) -> Iterator[str]:
    """The developer message, if it has any section."""
    sections = [
        *([instructions] if instructions else []),
        *([tools_section([_namespace(functions)])] if functions else []),
        *([_response_format(format_)] if isinstance(format_, JsonSchema) else []),
    ]
    if sections:
        yield _message("developer", PARAGRAPH.join(sections))


def _instructions(messages: Iterable[Message]) -> str:
    text = PARAGRAPH.join(text for message in messages if (text := _text(message.parts)))
    return f"# Instructions{PARAGRAPH}{text}" if text else ""


def _namespace(functions: Sequence[Function]) -> Namespace:
    for function in functions:
        if _header_word(function.name) != function.name:
            message = f"This model cannot call '{function.name}'. Use letters, digits, '_' and '-' in names."
            raise RequestError(message, param="tools")
    return Namespace(FUNCTIONS, tuple(functions))


def _response_format(format_: JsonSchema) -> str:
    schema = msgspec.json.encode(format_.schema).decode()
    described = "\n".join([*comment(format_.description or ""), schema])
    return PARAGRAPH.join(["# Response Formats", f"## {format_.name}", described])


def _is_native(function: Function) -> bool:
    return function.hosted is not None and function.hosted.native


def _namespace_of(name: str) -> str:
    """The text before the dot; all of it, if there is none."""
    return name.partition(".")[0]


def _effort(effort: Any) -> str:
    if effort is None:
        return "medium"
    if not isinstance(effort, str) or effort not in EFFORTS:
        message = f"Unknown reasoning effort. Use one of: {', '.join(EFFORTS)}."
        raise RequestError(message, param="reasoning_effort")
    return EFFORTS[effort]


def _is_instruction(item: Item) -> bool:
    return isinstance(item, Message) and item.role in (Role.SYSTEM, Role.DEVELOPER)


def _render_message(message: Message, following: Item | None) -> str:
    """One message. Instructions in the middle of a conversation stay there."""
    if message.template_role is not None:
        raise unknown_role(message.template_role)
    if _is_instruction(message):
        return _message("developer", _instructions([message]))
    speaker = f"{message.role.value}:{_header_word(message.name)}" if message.name else message.role.value
    channel = f"<|channel|>{_channel(message, following)}" if message.role is Role.ASSISTANT else ""
    return _message(speaker + channel, _text(message.parts))


def _channel(message: Message, following: Item | None) -> str:
    """The channel of an assistant message. Without a phase, text before a call is commentary."""
    before_call = message.phase is None and isinstance(following, FunctionCall)
    return "commentary" if before_call or message.phase == "commentary" else "final"


def _last_answer(turn: Turn) -> int:
    """The index of the last final answer, -1 if there is none. One that is continued does not count."""
    complete = turn.items[:-1] if turn.ending is PromptEnding.CONTINUED else turn.items
    answers = [
        index
        for index, (item, following) in enumerate(pairwise((*complete, None)))
        if isinstance(item, Message) and item.role is Role.ASSISTANT and _channel(item, following) == "final"
    ]
    return max(answers, default=-1)


def _header_word(name: str) -> str:
    """The name without characters that have a meaning in a header."""
    return _NOT_IN_NAMES.sub("_", name) or "_"


def _code(arguments: str) -> str | None:
    """The program in `{"code": "…"}`, None for any other arguments."""
    try:
        return msgspec.json.decode(arguments, type=_Code).code
    except msgspec.MsgspecError:
        return None


class _Code(msgspec.Struct, forbid_unknown_fields=True):
    code: str
