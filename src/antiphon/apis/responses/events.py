"""The wire events of a response's stream.

`type` is the first key of each and the sequence number the second: framing
reads the one, and frequent events are cut at the other.
"""

from collections.abc import Sequence

from msgspec import Raw, Struct

from antiphon.apis.responses.resource import OutputText, ReasoningText, Response, SummaryText


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
    """The model is working on it."""


class Completed(ResponseEvent, tag="response.completed"):
    """The model has finished."""


class Incomplete(ResponseEvent, tag="response.incomplete"):
    """The answer was cut: by a limit, or by the client."""


class Failed(ResponseEvent, tag="response.failed"):
    """There will be no more. An `error` event came before."""


# Its items


class ItemAdded(Event, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Struct | Raw


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
    """More reasoning, as OpenAI names it."""

    delta: str


class ReasoningTextDone(PartEvent, tag="response.reasoning_text.done"):
    """The whole reasoning, as OpenAI names it."""

    text: str


class ReasoningDelta(PartEvent, tag="response.reasoning.delta"):
    """More reasoning, as Open Responses names it."""

    delta: str


class ReasoningDone(PartEvent, tag="response.reasoning.done"):
    """The whole reasoning, as Open Responses names it."""

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


class StageEvent(Struct):
    """A call that the server runs has come to the stage that its type names."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
