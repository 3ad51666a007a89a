"""Chat request → turn. Every error names the parameter."""

from collections.abc import Iterator

import msgspec

from antiphon.apis.chat.schema import (
    ChatRequest,
    ContentPart,
    RequestMessage,
    RequestTool,
    ToolCall,
)
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Function, Sampling, Turn

_ROLES = {role.value: role for role in Role}
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})


def accept(request: ChatRequest, owner: str) -> Turn:
    """What the request asks for, on behalf of `owner`. Raises RequestError."""
    _refuse_what_is_missing(request)
    tools = tuple(_function(tool, index) for index, tool in enumerate(request.tools or ()))
    return Turn(
        model=request.model,
        items=tuple(_items(request.messages)),
        tools=tools,
        calls=_calls(request, tools),
        sampling=Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=request.seed,
            max_tokens=request.max_completion_tokens or request.max_tokens,
        ),
        stop=_stop(request.stop),
        choices=request.n or 1,
        owner=owner,
    )


def _refuse_what_is_missing(request: ChatRequest) -> None:
    """Say no to what Antiphon cannot do yet: to ignore it would be to answer another question."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    if request.logprobs:
        raise RequestError("'logprobs' is not supported yet. Leave it out.", param="logprobs")
    if request.response_format is not None and request.response_format.type != "text":
        message = f"'{request.response_format.type}' is not supported yet. Use 'text' or leave it out."
        raise RequestError(message, param="response_format.type")


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _function(tool: RequestTool, index: int) -> Function:
    if tool.type != "function":
        message = f"Tools of type '{tool.type}' are not supported. Use 'function'."
        raise RequestError(message, param=f"tools[{index}].type")
    if tool.function is None:
        param = f"tools[{index}].function"
        raise RequestError(f"Missing required parameter: '{param}'.", param=param)
    function = tool.function
    return Function(function.name, function.description, function.parameters or {}, function.strict)


def _calls(request: ChatRequest, tools: tuple[Function, ...]) -> bool:
    """Whether the model may call its tools."""
    match request.tool_choice:
        case None | "auto":
            return True
        case "none":
            return False
        case "required" | {"type": "function" | "allowed_tools"} if not tools:
            raise RequestError(
                "'tool_choice' asks for a call, but there are no 'tools'.", param="tool_choice"
            )
        case "required" | {"type": "function" | "allowed_tools"}:
            raise RequestError("Only 'auto' and 'none' are supported so far.", param="tool_choice")
    raise RequestError("Unknown tool choice. Use 'auto' or 'none'.", param="tool_choice")


def _items(messages: list[RequestMessage]) -> Iterator[Item]:
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role == "tool":
            parts = _parts(message.content, where)
            yield FunctionOutput(message.tool_call_id or "", parts, message.name)
        elif message.role in _ROLES:
            yield from _message(message, _ROLES[message.role], where)
        else:
            known = ", ".join((*_ROLES, "tool"))
            raise RequestError(f"Unknown role '{message.role}'. Use one of: {known}.", param=f"{where}.role")


def _message(message: RequestMessage, role: Role, where: str) -> Iterator[Item]:
    """One wire message: thoughts, then text, then calls, as the model wrote them."""
    reasoning = message.reasoning_content or message.reasoning
    assistant = role is Role.ASSISTANT
    if reasoning and assistant:
        yield Reasoning(reasoning)
    calls = message.tool_calls if assistant else None
    if message.content is None and not assistant:
        raise RequestError(f"Missing required parameter: '{where}.content'.", param=f"{where}.content")
    parts = _parts(message.content, where)
    if parts or not (calls or reasoning):
        yield Message(role, parts, message.name)
    for index, call in enumerate(calls or ()):
        yield _call(call, f"{where}.tool_calls[{index}]")


def _call(call: ToolCall, where: str) -> FunctionCall:
    arguments = call.function.arguments
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    # A call without an id cannot be answered by id; its place names it well enough.
    return FunctionCall(call.id or where, call.function.name, arguments or "{}")


def _parts(content: str | list[ContentPart] | None, where: str) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    return tuple(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content or ()))


def _part(part: ContentPart, where: str) -> TextPart:
    if part.type in _TEXT_TYPES and part.text is not None:
        return TextPart(part.text)
    if part.type == "refusal" and part.refusal is not None:
        return TextPart(part.refusal)
    if part.type in _TEXT_TYPES:
        raise RequestError(f"Missing required parameter: '{where}.text'.", param=f"{where}.text")
    raise RequestError(f"Parts of type '{part.type}' are not supported. Use 'text'.", param=f"{where}.type")
