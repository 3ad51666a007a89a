"""The wire events of a response's stream.

`type` is the first key of each and the sequence number the second: framing
reads the one, and frequent events are cut at the other.
"""

from collections.abc import Sequence

from msgspec import Raw, Struct

from antiphon.apis.responses.resource import (
    Item,
    OutputText,
    ReasoningText,
    Response,
    ShellOutput,
    SummaryText,
)


class Event(Struct, tag_field="type"):
    """What all have: a place in the stream, counted from 0 without gaps."""

    sequence_number: int


# The response


class ResponseEvent(Event):
    """Something happened to the response as a whole."""

    response: Response


class Created(ResponseEvent, tag="response.created"):
    """Always the first."""


class Queued(ResponseEvent, tag="response.queued"):
    """It waits for a worker."""


class InProgress(ResponseEvent, tag="response.in_progress"):
    """The model is at it."""


class Completed(ResponseEvent, tag="response.completed"):
    """The model said all it had to say."""


class Incomplete(ResponseEvent, tag="response.incomplete"):
    """The answer was cut: by a limit, or by who asked."""


class Failed(ResponseEvent, tag="response.failed"):
    """There will be no more. An `error` event came before."""


class ErrorPayload(Struct):
    """An error as Open Responses has it inside the event, and everyone in the body of an HTTP error."""

    type: str
    code: str | None
    message: str
    param: str | None


class ErrorEvent(Event, tag="error"):
    """Both specifications in one: OpenAI's fields beside Open Responses' `error`."""

    code: str | None
    message: str
    param: str | None
    error: ErrorPayload


class SocketError(ErrorEvent, tag="error"):
    """The same on a WebSocket, where the HTTP status has no other place. It is no part of a stream."""

    status: int


# Its items


class ItemAdded(Event, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Item | Raw


class ItemDone(Event, tag="response.output_item.done"):
    """An item is as it will stay."""

    output_index: int
    item: Raw


# Their parts


class PartEvent(Event):
    """Something happened to a part of an item's content."""

    item_id: str
    output_index: int
    content_index: int


class ContentPartAdded(PartEvent, tag="response.content_part.added"):
    """A part begins."""

    part: OutputText | ReasoningText


class ContentPartDone(PartEvent, tag="response.content_part.done"):
    """A part is whole."""

    part: OutputText | ReasoningText


class TextDelta(PartEvent, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: Sequence[Raw] = ()


class TextDone(PartEvent, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: Sequence[Raw] = ()


class ReasoningTextDelta(PartEvent, tag="response.reasoning_text.delta"):
    """More thoughts, as OpenAI names it."""

    delta: str


class ReasoningTextDone(PartEvent, tag="response.reasoning_text.done"):
    """The whole thought, as OpenAI names it."""

    text: str


class ReasoningDelta(PartEvent, tag="response.reasoning.delta"):
    """More thoughts, as Open Responses names it."""

    delta: str


class ReasoningDone(PartEvent, tag="response.reasoning.done"):
    """The whole thought, as Open Responses names it."""

    text: str


class SummaryEvent(Event):
    """Something happened to a part of a reasoning item's summary."""

    item_id: str
    output_index: int
    summary_index: int


class SummaryPartAdded(SummaryEvent, tag="response.reasoning_summary_part.added"):
    """A part begins."""

    part: SummaryText


class SummaryPartDone(SummaryEvent, tag="response.reasoning_summary_part.done"):
    """A part is whole."""

    part: SummaryText


class SummaryTextDelta(SummaryEvent, tag="response.reasoning_summary_text.delta"):
    """More of the summary."""

    delta: str


class SummaryTextDone(SummaryEvent, tag="response.reasoning_summary_text.done"):
    """The whole summary."""

    text: str


# Their calls


class CallEvent(Event):
    """Something happened to a call."""

    item_id: str
    output_index: int


class ArgumentsDelta(CallEvent, tag="response.function_call_arguments.delta"):
    """More arguments of a function."""

    delta: str


class ArgumentsDone(CallEvent, tag="response.function_call_arguments.done"):
    """All arguments of a function."""

    name: str
    arguments: str


class InputDelta(CallEvent, tag="response.custom_tool_call_input.delta"):
    """More input of a custom tool."""

    delta: str


class InputDone(CallEvent, tag="response.custom_tool_call_input.done"):
    """All input of a custom tool."""

    input: str


# The server's tools


class CodeInProgress(CallEvent, tag="response.code_interpreter_call.in_progress"):
    """A program begins."""


class CodeDelta(CallEvent, tag="response.code_interpreter_call_code.delta"):
    """More of a program."""

    delta: str


class CodeDone(CallEvent, tag="response.code_interpreter_call_code.done"):
    """The whole program."""

    code: str


class CodeInterpreting(CallEvent, tag="response.code_interpreter_call.interpreting"):
    """The program is being run."""


class CodeCompleted(CallEvent, tag="response.code_interpreter_call.completed"):
    """The program was run."""


class WebInProgress(CallEvent, tag="response.web_search_call.in_progress"):
    """Something is to be done in the web."""


class WebSearching(CallEvent, tag="response.web_search_call.searching"):
    """It is being done."""


class WebCompleted(CallEvent, tag="response.web_search_call.completed"):
    """It was done."""


class CommandEvent(Event):
    """Something happened to a command of a shell call. Its item is that of the index."""

    output_index: int
    command_index: int


class CommandAdded(CommandEvent, tag="response.shell_call_command.added"):
    """A command begins."""

    command: str


class CommandDelta(CommandEvent, tag="response.shell_call_command.delta"):
    """More of a command."""

    delta: str


class CommandDone(CommandEvent, tag="response.shell_call_command.done"):
    """The whole command."""

    command: str


class Printed(Struct):
    """What a command printed since it was last told."""

    stdout: str
    stderr: str


class ShellOutputDelta(CallEvent, tag="response.shell_call_output_content.delta"):
    """More output of a command."""

    command_index: int
    delta: Printed


class ShellOutputDone(CallEvent, tag="response.shell_call_output_content.done"):
    """All output of a command."""

    command_index: int
    output: tuple[ShellOutput, ...]
