"""The default presenter: any tool's call as an `mcp_call`.

Of the items that clients know, this one is made for tools that are not known beforehand: a name, arguments
as JSON text, and an output or an error as text. SDKs parse and accumulate it, user interfaces can display
it, and clients do not mistake it for a call that they have to answer, as with a `function_call`. The
`server_label` is the tool's label, or its type.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.events import CALL, event
from antiphon.apis.responses.output.item import ItemPosition, frame
from antiphon.apis.responses.presenters.presenter import PresentedCall, Presenter, output_item
from antiphon.apis.responses.programs import ProgramCaller, calling
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.items import FunctionCall, Item
from antiphon.core.plain_tokens import SequenceNumbers
from antiphon.core.tool_result import RemoteFailure

McpArgumentsDelta = event("response.mcp_call_arguments.delta", *CALL, "delta")
McpArgumentsDone = event("response.mcp_call_arguments.done", *CALL, "arguments")


class McpText(Struct, tag_field="type", tag="text"):
    """Text, as MCP has it."""

    text: str


class McpError(Struct, tag_field="type", tag="mcp_tool_execution_error"):
    """Why a call failed."""

    content: tuple[McpText, ...]


class McpRemoteError(Struct):
    """Why a server could not be reached, or violated its protocol, depending on `type`."""

    type: str
    code: int
    message: str


_REMOTE = {"protocol": "mcp_protocol_error", "http": "http_error"}


class McpCallItem(Struct, tag_field="type", tag="mcp_call"):
    """A call of any tool."""

    id: str
    status: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Struct | None = None
    approval_request_id: str | None = None
    caller: ProgramCaller | UnsetType = UNSET


class GenericPresenter(Presenter):
    """A call of any tool."""

    type = "mcp_call"

    def __init__(self, numbers: SequenceNumbers, position: ItemPosition, call: PresentedCall) -> None:
        super().__init__(numbers, position, call)
        self.frame = frame(McpArgumentsDelta, *position)

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        """A call, under the model's name of its function if that is offered, and its result."""
        call_id, name = item.text("id"), item.named("name")
        for function in tools.functions:
            hosted = function.hosted
            if hosted and (hosted.server, hosted.action) == (item.value.get("server_label"), name):
                name = function.name
        yield FunctionCall(call_id, name, json_text(item.value.get("arguments")))
        answer = item.value.get("output") or _error_text(item.value.get("error"))
        if answer:
            yield output_item(call_id, json_text(answer))

    def item(self, status: str) -> McpCallItem:
        """The call, with its result."""
        hosted, result = self.call.hosted, self.result
        shown = McpCallItem(self.position.id, self.status_of(status), hosted.server, hosted.action, self.text)
        shown.caller = calling(self.call.caller)
        if self.call.approved:
            shown.approval_request_id = self.call.id
        remote = None if self.call.caller else result and result.details  # programs get the text
        if isinstance(failure := remote, RemoteFailure):
            shown.error = McpRemoteError(_REMOTE[failure.kind], failure.code, failure.message)
        elif result is not None and result.failed:
            shown.error = McpError((McpText(result.text),))
        elif result is not None:
            shown.output = result.text
        return shown

    def start(self) -> list[bytes]:
        """The item, and the event that it is in progress."""
        return [self.added(), self.stage("in_progress")]

    def end(self, item: Item) -> list[bytes]:
        """The arguments, as far as they were written."""
        assert isinstance(item, FunctionCall)
        self.text = item.arguments
        return [self.numbers.encode(McpArgumentsDone, *self.position, self.text)]

    def completed(self) -> list[bytes]:
        """It was run, or failed."""
        return [self.stage("failed" if self.failed else "completed")]


def _error_text(error: Any) -> Any:
    """The text of an error in the form that items have; other forms are shown unchanged."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error["message"]
    content = error.get("content") if isinstance(error, dict) else None
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return error
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str)) or error
