"""Steering: input for a response that is being answered. It ends, and another one begins with the input.

A client on a WebSocket sends `response.steer`, and gets events that are not events of a response; one over
HTTP sends the same input to the response's own path, which is no API of OpenAI's. Source: the types of
`response.steer` and its events in OpenAI's SDK (`openai.types.responses`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.apis.request_object import RequestObject, object_at
from antiphon.apis.responses.schema import CreateResponse, Id
from antiphon.apis.responses.stored import StoredItem
from antiphon.core.errors import AntiphonError, RequestError

SteerInput = str | list[Any]
"""A text, or messages of the user."""

NOT_FOUND = "response_not_found"
INVALID = "invalid_input"
NOT_SUPPORTED = "steering_not_supported"
TOO_MANY = "too_many_pending_steers"
COMPLETED = "response_already_completed"
NOT_ACTIVE = "response_not_active"
NO_SUCCESSOR = "successor_creation_failed"
"""The codes of errors."""

WAITS = "waiting_for_required_input"
"""Why input waits: outputs of calls have to come first."""

_FIELDS = frozenset({"type", "role", "content"})
_PARTS = ("input_text", "input_image", "input_file")


# Requests


class SteerMessage(Struct, forbid_unknown_fields=True):
    """A message of a client: input for the response `previous_response_id`, which is running."""

    type: Literal["response.steer"]
    previous_response_id: Id
    input: SteerInput


class SteerResponse(Struct, forbid_unknown_fields=True):
    """POST /v1/responses/{response_id}/steer."""

    input: SteerInput


def steering_error(code: str, message: str, param: str | None = None) -> RequestError:
    """The error with this code."""
    return RequestError(message, param=param, code=code)


def check_input(given: SteerInput) -> None:
    """Refuse input that no response can be steered with. Raises RequestError."""
    if not given:
        raise steering_error(
            INVALID, "'input' is empty. Send a text, or at least one message of the user.", "input"
        )
    if isinstance(given, list):
        for index, item in enumerate(given):
            _check_message(object_at(item, f"input[{index}]"))


def _check_message(item: RequestObject) -> None:
    """Raise RequestError for anything but a message of the user with text, images and files."""
    if (item.text_or_none("type") or "message") != "message":
        raise item.wrong("type", "Steer with messages. Send outputs of calls with the next request.")
    if item.text_or_none("role") != "user":
        raise item.wrong("role", "Steer with messages of the user.")
    others = [name for name, value in item.value.items() if name not in _FIELDS and value is not None]
    if others:
        raise item.wrong(others[0], "A message here has 'type', 'role' and 'content' only. Leave it out.")
    content = item.value.get("content")
    if not content:
        raise item.missing("content")
    if not isinstance(content, str):
        for part in item.objects("content"):
            if part.text_or_none("type") not in _PARTS:
                raise part.wrong("type", f"Use one of: {', '.join(_PARTS)}.")


def joined(inputs: Sequence[SteerInput], given: SteerInput | None = None) -> list[Any]:
    """These inputs, and then that of a request, as one."""
    parts = [*inputs, *([] if given is None else [given])]
    return [item for part in parts for item in (_as_items(part) if isinstance(part, str) else part)]


def _as_items(text: str) -> list[Any]:
    return [{"type": "message", "role": "user", "content": text}]


def check_steerable(request: CreateResponse) -> None:
    """Refuse to steer the answer to a request that none can follow by itself. Raises RequestError."""
    if request.conversation is not None:
        why = "the response is one of a conversation. Add the input to that when the response has ended"
    elif request.context_management:
        why = "its conversation is compacted by itself. Send the input when the response has ended"
    elif request.warms:
        why = "the response has no output. Send the input when it has ended"
    else:
        return
    raise steering_error(NOT_SUPPORTED, f"It cannot be steered, because {why}.", "previous_response_id")


def successor(request: CreateResponse, response_id: str, inputs: Sequence[SteerInput]) -> CreateResponse:
    """The request for the response after this one: it has the same settings, and this input."""
    return replace(
        request,
        input=joined(inputs),
        previous_response_id=response_id,
        previous_input_messages=None,
        request_id=None,  # an id of a response is derived from it
    )


# What the client has to send first

_OUTPUTS: Mapping[str, str] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}
"""Type of a call → type of the item that answers it."""

_APPROVAL = "mcp_approval_request"
_ASKS = frozenset({*_OUTPUTS, *_OUTPUTS.values(), _APPROVAL})
_CUT = "incomplete"


def required_by(output: Sequence[StoredItem]) -> list[dict[str, Any]]:
    """The items that a client has to complete before these items of a response can be gone on with."""
    return required_input([msgspec.json.decode(item.payload) for item in output if item.type in _ASKS])


def required_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same for a response object: its own, or what the one before it has left open."""
    return response.get("required_input") or required_input(response["output"])


def required_input(output: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same for decoded items."""
    items = [item for item in output if item.get("type") in _ASKS]
    answered = {item.get("call_id") for item in items if item["type"] in _OUTPUTS.values()}
    return [
        stub
        for item in items
        if item.get("call_id") not in answered and _waits(item) and (stub := _stub(item))
    ]


def _waits(item: Mapping[str, Any]) -> bool:
    """Whether the conversation waits for an answer to an item."""
    return item.get("status") != _CUT and not item.get("async")


def _stub(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """What identifies the answer to an item, if the client has to give it."""
    type_ = item["type"]
    if type_ == _APPROVAL:
        return {"type": "mcp_approval_response", "approval_request_id": item["id"]}
    if type_ not in _OUTPUTS or (type_ == "tool_search_call" and item.get("execution") != "client"):
        return None
    stub = {"type": _OUTPUTS[type_], "call_id": item["call_id"]}
    if type_ == "function_call":
        stub["name"] = item["name"]
    elif type_ == "tool_search_call":
        stub["execution"] = "client"
    return stub


# Answers


class SteerReference(Struct):
    """A piece of input that was taken, and the response that it steers."""

    id: str
    previous_response_id: str


class SteerAccepted(Struct, tag_field="type", tag="response.steer.accepted"):
    """The input is taken. The next response has it, which `response.created` announces."""

    sequence_number: int
    steer: SteerReference


class SteerPending(Struct, tag_field="type", tag="response.steer.pending"):
    """The response has ended with calls: the input is put before that of the request with their outputs."""

    sequence_number: int
    required_input: list[dict[str, Any]]
    steer: SteerReference
    reason: str = WAITS


class SteerError(Struct):
    """Why input was not taken, or was lost."""

    code: str
    message: str
    type: str = "invalid_request_error"


class FailedSteer(Struct):
    """Input that no response has. It has an id if it was accepted."""

    input: Any
    previous_response_id: str
    id: str | UnsetType = UNSET


class SteerFailed(Struct, tag_field="type", tag="response.steer.failed"):
    """The input was not taken, or the response that should have it could not be created."""

    sequence_number: int
    error: SteerError
    steer: FailedSteer


def failed(number: int, error: AntiphonError, steer: FailedSteer, code: str = INVALID) -> bytes:
    """The event for input that was not taken. `code` is that of an error without one of its own."""
    known = error.code if error.code in _CODES else code
    return msgspec.json.encode(SteerFailed(number, SteerError(known or code, error.message), steer))


_CODES = frozenset({NOT_FOUND, INVALID, NOT_SUPPORTED, TOO_MANY, COMPLETED, NOT_ACTIVE, NO_SUCCESSOR})


class Steer(Struct, tag_field="object", tag="response.steer"):
    """The answer over HTTP: the input is taken. `response_id` is the response that will have it."""

    id: str
    previous_response_id: str
    response_id: str
