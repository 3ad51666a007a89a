"""Stored items → the conversation that the model is shown.

Messages, reasoning and calls are shown unchanged. Calls of server tools are read back by their presenters:
under the model's name of the tool, if it is offered. Items without content for the model (searches without
results) are not shown, nor the calls of programs; items before a compaction only if they are messages to the
model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from antiphon.apis.custom_tools import to_arguments
from antiphon.apis.media import at_url, file_of, in_base64, stored
from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.added_tools import FOUND, SEARCH, read_found, read_search
from antiphon.apis.responses.client_tools import client_call, read_computer_call, read_screenshot
from antiphon.apis.responses.presenters.presenter import output_item
from antiphon.apis.responses.presenters.registry import NO_PRESENTERS, Presenters
from antiphon.apis.responses.programs import hidden_calls
from antiphon.apis.responses.tools import NO_TOOLS, Toolbox, flat_name
from antiphon.apis.sealing import is_sealed
from antiphon.apis.summaries import summarized
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
from antiphon.core.positions import place_message
from antiphon.core.surrogates import with_whole_characters_in

INVALID_SEALED = "invalid_encrypted_content"
"""OpenAI's code, by which clients know that they have to send a conversation without its sealed parts."""

Unseal = Callable[[str], str | None]
"""Decrypts a text; None if it was sealed on another server, or for another owner."""

_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_ROLES = {role.value: role for role in Role}
_TEXT_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_OTHERS = ("input_image", "input_file")


Reader = Callable[[RequestObject, Unseal], Iterator[Item]]


def to_core(  # noqa: PLR0913 - a conversation, and what its request says of it
    items: Iterable[RequestObject],
    unseal: Unseal,
    tools: Toolbox = NO_TOOLS,
    presenters: Presenters = NO_PRESENTERS,
    asked: Mapping[str, tuple[Item, ...]] = MappingProxyType({}),
    *,
    said: Mapping[int, str] = MappingProxyType({}),
) -> tuple[Item, ...]:
    """The conversation for a model with these tools. Raises RequestError, naming the item.

    `asked` are the items for requests for an approval, by their ids. `said` is what the conversation says
    about tools and settings, by the index of the item that changes them.
    """
    shown: list[Item] = []
    items = [*items]
    hidden = hidden_calls(items)
    for index, item in enumerate(items):
        type_ = item.value["type"]
        if index in hidden:
            continue
        if type_ == "compaction":
            shown = summarized(shown, _opened(item, item.text("encrypted_content"), unseal))
        elif type_ == "mcp_approval_request":
            shown += asked.get(item.text("id"), ())
        elif type_ in presenters.readers:
            shown += presenters.readers[type_].read(item, tools)
        elif type_ == FOUND:
            shown += read_found(tools.search_ids.get(index), said.get(index, ""))
        elif type_ == SEARCH:
            shown += read_search(item, tools.search_ids.get(index) or item.text("id"))
        elif text := said.get(index):
            shown.append(place_message(text))
        elif type_ in _READERS:
            shown += item.made_by(_read, unseal)
    return tuple(shown)


def _read(item: RequestObject, unseal: Unseal) -> tuple[Item, ...]:
    """What the model is shown of an item, whatever is around it."""
    return tuple(_READERS[item.value["type"]](item, unseal))


def check_outputs(history: Iterable[RequestObject], items: Iterable[RequestObject]) -> None:
    """Every output among the items answers a call. Raises RequestError, naming the output that does not."""
    calls = {item.value["call_id"] for item in history if item.value["type"] in _CALLS}
    for item in items:
        if item.value["type"] in _CALLS:
            calls.add(item.text("call_id"))
        elif item.value["type"] in _OUTPUTS and item.text("call_id") not in calls:
            message = f"No tool call found for the output with call_id '{item.text('call_id')}'."
            raise RequestError(message, param=item.place("call_id"))


def _message(item: RequestObject, _: Unseal) -> Iterator[Item]:
    role = item.text("role")
    if role not in _ROLES:
        raise item.wrong("role", f"Use one of: {', '.join(_ROLES)}.")
    whole = item.value.get("status", "completed") == "completed"
    status = Status.COMPLETED if whole else Status.INCOMPLETE
    phase = item.text_or_none("phase")
    yield Message(_ROLES[role], parse_parts(item, "content"), phase=phase, status=status)


def _reasoning(item: RequestObject, unseal: Unseal) -> Iterator[Item]:
    """Reasoning: as it was shown, or else as it was sealed. What another server has sealed stays hidden."""
    text = "".join(part.text("text") for part in item.objects("content"))
    sealed = item.text_or_none("encrypted_content")
    if not text and sealed is not None and is_sealed(sealed):
        text = _opened(item, sealed, unseal)
    if not text:
        text = "\n\n".join(part.text("text") for part in item.objects("summary"))
    if text:
        yield Reasoning(text)


def _opened(item: RequestObject, sealed: str, unseal: Unseal) -> str:
    text = unseal(sealed)
    if text is None:
        message = "This server did not make it, or not for this API key. Leave the item out."
        error = item.wrong("encrypted_content", message)
        error.code = INVALID_SEALED
        raise error
    return text


def _function_call(item: RequestObject, _: Unseal) -> Iterator[Item]:
    name = flat_name(item.text_or_none("namespace"), item.named("name"))
    arguments = with_whole_characters_in(item.text("arguments"))
    unawaited = bool(item.flag_or_none("async"))
    yield FunctionCall(item.text("call_id"), name, arguments, unawaited=unawaited)


def _custom_call(item: RequestObject, _: Unseal) -> Iterator[Item]:
    name = flat_name(item.text_or_none("namespace"), item.named("name"))
    arguments, unawaited = to_arguments(item.text("input")), bool(item.flag_or_none("async"))
    yield FunctionCall(item.text("call_id"), name, arguments, unawaited=unawaited)


def _output(item: RequestObject, _: Unseal) -> Iterator[Item]:
    yield FunctionOutput(item.text("call_id"), parse_parts(item, "output"))


def _client(read: Callable[[RequestObject], Iterator[Item]]) -> Reader:
    """A reader of an item of a client's tool that has a type of its own."""
    return lambda item, _: read(item)


def _generated_image(item: RequestObject, _: Unseal) -> Iterator[Item]:
    """A picture that was made earlier, as the result of a call. Its base64 may come as a data URL."""
    call_id, image = item.text("id"), item.text_or_none("result")
    prompt = item.text_or_none("revised_prompt")
    yield FunctionCall(call_id, "image_generation", json_text({"prompt": prompt} if prompt else {}))
    if not image:
        yield output_item(call_id, "(There is no image.)")
    elif image.startswith("data:"):
        yield FunctionOutput(call_id, (at_url(MediaKind.IMAGE, item, item.place("result"), "result"),))
    else:
        yield FunctionOutput(call_id, (in_base64(MediaKind.IMAGE, item, item.place("result"), "result"),))


def _client_output(item: RequestObject, _: Unseal) -> Iterator[Item]:
    call_id = item.text_or_none("call_id") or item.text("id")
    yield output_item(call_id, json_text(item.value.get("output") or ""))


_READERS: dict[str, Reader] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "computer_call": _client(read_computer_call),
    "computer_call_output": _client(read_screenshot),
    "local_shell_call": _client(client_call("local_shell", "action")),
    "local_shell_call_output": _client_output,
    "image_generation_call": _generated_image,
    "apply_patch_call": _client(client_call("apply_patch", "operation")),
    "apply_patch_call_output": _client_output,
}


def parse_parts(item: RequestObject, name: str) -> tuple[Part, ...]:
    """The parts of a field that is a string or an array of them. Raises RequestError."""
    value = item.value.get(name)
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    return tuple(_part(part) for part in item.objects(name))


def _part(part: RequestObject) -> Part:
    type_ = part.text("type")
    if type_ in _TEXT_TYPES:
        return TextPart(part.text("text"))
    if type_ == "refusal":
        return TextPart(part.text("refusal"))
    if type_ == "input_file":
        return file_of(part, part.where, "file_data", "file_url")
    if type_ == "input_image":
        return _image(part)
    raise part.wrong("type", f"There are no '{type_}' parts here. Use 'input_text', {', '.join(_OTHERS)}.")


def _image(part: RequestObject) -> Attachment:
    if part.value.get("file_id") is not None:
        return stored(MediaKind.IMAGE, part, part.where)
    return at_url(MediaKind.IMAGE, part, part.where, "image_url")
