"""The messages of a request → the items of a conversation.

Mistakes of the client are refused, by name. Mistakes in an earlier answer, or in a client's record of it,
are repaired and reported: otherwise a conversation could not continue after a malformed call.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from antiphon.apis.chat.schema import CalledCustom, CalledFunction, ContentPart, RequestMessage, ToolCall
from antiphon.apis.custom_tools import to_arguments
from antiphon.apis.media import at_url, file_of, in_base64
from antiphon.apis.request_object import RequestObject, object_at
from antiphon.core.call_results import UNNAMED
from antiphon.core.errors import RequestError
from antiphon.core.items import (
    Attachment,
    FunctionCall,
    FunctionOutput,
    Item,
    MediaKind,
    Message,
    Part,
    Reasoning,
    Role,
    Status,
    TextPart,
)
from antiphon.core.positions import describe, place_message
from antiphon.core.surrogates import with_whole_characters_in
from antiphon.core.turn import Function, role_parameter

_ROLES = {role.value: role for role in Role}
_ASKING = {role.value: role for role in Role if role is not Role.ASSISTANT}
_RESULTS = frozenset({"tool", "function"})
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_THINKING = "thinking"
MEDIA = {
    "image_url": MediaKind.IMAGE,
    "input_audio": MediaKind.AUDIO,
    "audio_url": MediaKind.AUDIO,
    "video_url": MediaKind.VIDEO,
    "file": MediaKind.FILE,
}


class History:
    """Reads messages, which are in the parameter `where`.

    `announced` are the functions that messages bring, by their indices: these describe them. `items` are the
    result, `repairs` lists what was repaired. `places` are those of roles that only a chat template may know,
    by the neutral names of these parameters.
    """

    def __init__(
        self,
        messages: list[RequestMessage],
        where: str = "messages",
        announced: Mapping[int, Sequence[Function]] = MappingProxyType({}),
    ) -> None:
        self.items: list[Item] = []
        self.repairs: list[str] = []
        self.places: dict[str, str] = {}
        self._open: dict[str, str] = {}  # calls without a result: id → name, oldest first
        for index, message in enumerate(messages):
            role, content = _ASKING.get(message.role), message.content
            if role is not None and type(content) is str:  # as most, and without mistakes
                self.items.append(Message(role, (TextPart(content),) if content else (), message.name))
            else:
                self._read(message, f"{where}[{index}]")
            if index in announced:
                self.items.append(place_message(describe(announced[index]), Role.SYSTEM))

    def _read(self, message: RequestMessage, where: str) -> None:
        if message.role in _RESULTS:
            self._read_result(message, where)
        elif message.role == Role.ASSISTANT:
            self._read_answer(message, where)
        elif message.content is None:
            if not message.tools:
                param = f"{where}.content"
                raise RequestError(f"Missing required parameter: '{param}'.", param=param)
        else:
            parts, role = _parts(message.content, where), message.role
            other = None if role in _ROLES else role
            self.items.append(Message(_ROLES.get(role, Role.USER), parts, message.name, template_role=other))
            if other is not None:
                self.places.setdefault(role_parameter(other), f"{where}.role")

    def _read_answer(self, message: RequestMessage, where: str) -> None:
        """Reasoning, then text, then calls, as the model wrote them."""
        if message.audio is not None:
            raise RequestError(
                "Audio of answers is not supported. Send the text as 'content'.", param=f"{where}.audio"
            )
        content = message.content if message.content is not None else message.refusal
        reasoning = message.reasoning_content or message.reasoning or _thoughts(content, where)
        if reasoning:
            self.items.append(Reasoning(reasoning))
        parts = _parts(content, where, apart=_THINKING)
        calls = [*_called(message, where)]
        if parts or not (calls or reasoning):
            self.items.append(Message(Role.ASSISTANT, parts, message.name))
        if not (calls or reasoning) and message.content is None and message.refusal is None:
            self._note_repair(where, "says nothing")
        if message.tool_calls == []:
            self._note_repair(f"{where}.tool_calls", "is empty")
        for call, place in calls:
            self._read_call(call, place)

    def _read_call(self, call: ToolCall, where: str) -> None:
        # A call without an id cannot be answered by id; its position identifies it.
        call_id = call.id or where
        match call:
            case ToolCall(custom=CalledCustom() as custom):
                name, arguments, status = custom.name, to_arguments(custom.input or ""), Status.COMPLETED
            case ToolCall(function=CalledFunction() as function):
                name, (arguments, status) = function.name, self._arguments(function, where)
            case _:
                raise _missing(f"{where}.function")
        if not name:
            self._note_repair(f"{where}.function.name", "is empty")
        self._open[call_id] = name or UNNAMED
        self.items.append(FunctionCall(call_id, name or UNNAMED, arguments, status))

    def _arguments(self, function: CalledFunction, where: str) -> tuple[str, Status]:
        arguments = function.arguments
        if isinstance(arguments, dict):
            self._note_repair(f"{where}.function.arguments", "is an object, not JSON as text")
            return msgspec.json.encode(arguments).decode(), Status.COMPLETED
        if not arguments:
            return "{}", Status.COMPLETED
        arguments = with_whole_characters_in(arguments)
        if not _is_object(arguments):
            self._note_repair(f"{where}.function.arguments", "is no JSON object")
            return arguments, Status.INCOMPLETE
        return arguments, Status.COMPLETED

    def _read_result(self, message: RequestMessage, where: str) -> None:
        parts = _parts(message.content, where)
        call_id = message.tool_call_id or self._unanswered(message.name) or where
        if not message.tool_call_id and message.role == "tool":
            self._note_repair(f"{where}.tool_call_id", "is missing")
        self._open.pop(call_id, None)
        if message.content is None:
            self._note_repair(f"{where}.content", "is missing")
        self.items.append(FunctionOutput(call_id, parts, message.name))

    def _unanswered(self, name: str | None) -> str | None:
        """The first call without a result, of this name if it is given."""
        named = (call_id for call_id, called in self._open.items() if called == name)
        return next(named, None) or next(iter(self._open), None)

    def _note_repair(self, where: str, what: str) -> None:
        self.repairs.append(f"{where} {what}")


def _called(message: RequestMessage, where: str) -> Iterator[tuple[ToolCall, str]]:
    """The calls of an assistant's message, with their places."""
    for index, call in enumerate(message.tool_calls or ()):
        yield call, f"{where}.tool_calls[{index}]"
    if message.function_call is not None:
        yield ToolCall(message.function_call), f"{where}.function_call"


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _parts(content: str | list[ContentPart] | None, where: str, apart: str = "") -> tuple[Part, ...]:
    """The parts of a message, without those of a type that is read `apart`."""
    if not content:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    placed = [(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return tuple([_part(part, place) for part, place in placed if part.type != apart])


def _thoughts(content: str | list[ContentPart] | None, where: str) -> str:
    """The reasoning in parts of an answer, as Mistral's clients send it back, and vLLM's."""
    placed = enumerate(() if content is None or isinstance(content, str) else content)
    thoughts = (
        _thought(part, f"{where}.content[{index}]") for index, part in placed if part.type == _THINKING
    )
    return "\n\n".join(thoughts)


def _thought(part: ContentPart, where: str) -> str:
    place = f"{where}.{_THINKING}"
    match part.thinking:
        case str(thought):
            return thought
        case list(pieces):
            return "".join([_text(piece, f"{place}[{index}]") for index, piece in enumerate(pieces)])
    raise _missing(place)


def _text(part: ContentPart, where: str) -> str:
    if part.text is None:
        raise _missing(f"{where}.text")
    return part.text


def _missing(param: str) -> RequestError:
    return RequestError(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def _part(part: ContentPart, where: str) -> Part:
    if part.type in _TEXT_TYPES:
        return TextPart(_text(part, where))
    if part.type == "refusal" and part.refusal is not None:
        return TextPart(part.refusal)
    if part.type not in MEDIA:
        known = ", ".join(("text", *MEDIA))
        raise RequestError(
            f"Parts of type '{part.type}' are not supported. Use one of: {known}.", param=f"{where}.type"
        )
    return _medium(part, where)


def _medium(part: ContentPart, where: str) -> Attachment:
    """A part that is not text. Its URL may be a plain string, as some clients send it."""
    value = getattr(part, part.type)
    whole = RequestObject({part.type: value}, where)
    kind = MEDIA[part.type]
    if value is None:
        raise whole.missing(part.type)
    if isinstance(value, str) and part.type.endswith("_url"):
        return at_url(kind, whole, where, part.type)
    holder = object_at(value, f"{where}.{part.type}")
    if part.type == "input_audio":
        return in_base64(kind, holder, where)
    return file_of(holder, where, "file_data") if kind is MediaKind.FILE else at_url(kind, holder, where)
