"""The wire events of a response's stream: one table of their types and fields.

`type` is the first key of each and the sequence number, counted from 0 without gaps, the second: framing
reads the first, and the frames of frequent events are split at the second. An event is made with its
sequence number and its fields, in their order. The events of calls of server tools are in the modules of
their presenters.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, defstruct

Event = Callable[..., Struct]
ITEM = ("output_index",)
CALL = ("item_id", *ITEM)
PART = (*CALL, "content_index")
SUMMARY_PART = (*CALL, "summary_index")
LOGPROBS = ("logprobs", Any, ())


def event(type_: str, *fields: str | tuple[str, Any, Any]) -> Event:
    """An event of this type, with these fields after its number; some have a type and a default."""
    return defstruct(type_, ["sequence_number", *fields], tag_field="type", tag=type_)


# The response: `created` is the first event, and one of the last three is the last.
Created = event("response.created", "response")
Queued = event("response.queued", "response")
InProgress = event("response.in_progress", "response")
Completed = event("response.completed", "response")
Incomplete = event("response.incomplete", "response")
Failed = event("response.failed", "response")

# Its items, from beginning to end; some have parts
ItemAdded = event("response.output_item.added", *ITEM, "item")
ItemDone = event("response.output_item.done", *ITEM, "item")
ContentPartAdded = event("response.content_part.added", *PART, "part")
ContentPartDone = event("response.content_part.done", *PART, "part")
TextDelta = event("response.output_text.delta", *PART, "delta", LOGPROBS)
TextDone = event("response.output_text.done", *PART, "text", LOGPROBS)

AnnotationAdded = event("response.output_text.annotation.added", *PART, "annotation_index", "annotation")

# Reasoning, by OpenAI's names, by those of Open Responses, and as a summary
ReasoningTextDelta = event("response.reasoning_text.delta", *PART, "delta")
ReasoningTextDone = event("response.reasoning_text.done", *PART, "text")
ReasoningDelta = event("response.reasoning.delta", *PART, "delta")
ReasoningDone = event("response.reasoning.done", *PART, "text")
SummaryPartAdded = event("response.reasoning_summary_part.added", *SUMMARY_PART, "part")
SummaryPartDone = event("response.reasoning_summary_part.done", *SUMMARY_PART, "part")
SummaryTextDelta = event("response.reasoning_summary_text.delta", *SUMMARY_PART, "delta")
SummaryTextDone = event("response.reasoning_summary_text.done", *SUMMARY_PART, "text")

# Calls that the client answers: of functions and of custom tools
ArgumentsDelta = event("response.function_call_arguments.delta", *CALL, "delta")
ArgumentsDone = event("response.function_call_arguments.done", *CALL, "name", "arguments")
InputDelta = event("response.custom_tool_call_input.delta", *CALL, "delta")
InputDone = event("response.custom_tool_call_input.done", *CALL, "input")

# A command has no id: it is identified by the index of its item, and its own
CommandAdded = event("response.shell_call_command.added", *ITEM, "command_index", "command")
CommandDelta = event("response.shell_call_command.delta", *ITEM, "command_index", "delta")
CommandDone = event("response.shell_call_command.done", *ITEM, "command_index", "command")


class StageEvent(Struct):
    """A call of a server tool has reached the stage in its type."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
