"""The wire types of answers: the response object, its items and their parts.

Every field that either specification requires is present, null if allowed. Fields of only one specification
that must not be null are left out if they have no value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from antiphon.apis.moderation import ResponseModeration
from antiphon.apis.request_object import Object
from antiphon.apis.responses.programs import ProgramCaller
from antiphon.apis.responses.schema import BackgroundOptions
from antiphon.core import events
from antiphon.core.chunks import FinishReason
from antiphon.core.hosts import ListedTool, Note

# Parts


class TopLogProb(Struct):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class LogProb(TopLogProb):
    """A token of the text, and the candidates at its position."""

    top_logprobs: list[TopLogProb]


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text by the model. `logprobs` are encoded `LogProb`s: each appears in four events."""

    text: str
    annotations: Sequence[Any] = ()
    logprobs: Sequence[Raw] = ()


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning, as the model wrote it."""

    text: str


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    """Reasoning, where a client requested a summary of it."""

    text: str


# Items


class OutputMessage(Struct, tag_field="type", tag="message"):
    """A message by the model. `phase` is set if the model has one."""

    id: str
    status: str
    content: tuple[OutputText, ...]
    role: str = "assistant"
    phase: str | UnsetType = UNSET


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    """Reasoning by the model. `encrypted_content` is set if it was requested."""

    id: str
    status: str
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(Struct, tag_field="type", tag="function_call"):
    """A function that the model wants called. `arguments` is JSON text, if the model wrote it well."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    unawaited: bool | UnsetType = field(default=UNSET, name="async")
    caller: ProgramCaller | UnsetType = UNSET


class CustomCallItem(Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool, whose input is text."""

    id: str
    status: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    unawaited: bool | UnsetType = field(default=UNSET, name="async")
    caller: ProgramCaller | UnsetType = UNSET


class ListedToolEntry(Struct, omit_defaults=True):
    """A tool of a remote server. Null fields are left out, as clients expect."""

    name: str
    input_schema: Mapping[str, Any]
    description: str | None = None
    annotations: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, tool: ListedTool) -> "ListedToolEntry":
        """The tool, as it was listed."""
        return cls(tool.name, tool.input_schema, tool.description, tool.annotations)


class ListToolsItem(Struct, tag_field="type", tag="mcp_list_tools"):
    """The tools of a remote server, or why they could not be listed.

    Clients do not accept an error of null.
    """

    id: str
    server_label: str
    tools: tuple[ListedToolEntry, ...] = ()
    error: str | UnsetType = UNSET


# The response


class InputTokensDetails(Struct):
    """`cached_tokens` are those that the engine did not have to compute.

    `cache_write_tokens` is required by OpenAI's document; it is 0, because there is no charge for caching.
    """

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    """`reasoning_tokens` are part of the output."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Tokens of a response, over all its generations."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


def usage_of(prompt_tokens: int, usage: events.Usage) -> ResponseUsage:
    """The usage of a response whose first prompts had this number of tokens."""
    prompts = prompt_tokens + usage.prompt_tokens + usage.media_tokens
    output = usage.completion_tokens
    return ResponseUsage(
        prompts,
        InputTokensDetails(usage.cached_tokens),
        output,
        OutputTokensDetails(usage.reasoning_tokens),
        prompts + output,
    )


class IncompleteDetails(Struct):
    """Why a response is incomplete. `cancelled` and `max_tool_calls` are not in OpenAI's document."""

    reason: str


INCOMPLETE_REASONS = {
    FinishReason.LENGTH: IncompleteDetails("max_output_tokens"),
    FinishReason.CONTENT_FILTER: IncompleteDetails("content_filter"),
    FinishReason.TOOL_LIMIT: IncompleteDetails("max_tool_calls"),
    FinishReason.STEERED: IncompleteDetails("steered"),
}
"""Those of a response whose generation ended for this reason."""
CANCELLED_DETAILS = IncompleteDetails("cancelled")


class ResponseError(Struct):
    """Why a response failed. `code` is one of OpenAI's ResponseErrorCode."""

    code: str
    message: str


class RawMessage(Struct, tag_field="type", tag="raw_message_tokens"):
    """A text that the model read or wrote, with its tokens: vLLM's."""

    message: str
    tokens: Sequence[int]


RawMessages = Sequence[Any]
"""What the model read or wrote: each text, a `RawMessage`, or the messages of all, which are objects.

A union of both would have no schema.
"""


class ReasoningSettings(Struct, frozen=True):
    """The reasoning settings of the request.

    `mode` is the one there is, and `context` the one in effect, if the request has named one.
    """

    effort: str | None = None
    summary: str | None = None
    mode: str | UnsetType = UNSET
    context: str | UnsetType = UNSET


class TextSettings(Struct, frozen=True):
    """The text settings of the request."""

    format: Object
    verbosity: str | UnsetType = UNSET


class CacheSettings(Struct, frozen=True):
    """What the request says of caching, with OpenAI's defaults."""

    mode: str = "implicit"
    ttl: str = "30m"
    comparison_response_id: str | UnsetType = UNSET


class CacheDiagnostics(Struct, frozen=True, omit_defaults=True):
    """Whether the prompt begins with that of the other response, and else why not.

    After the first difference it has `cache_missed_tokens`; before it there are `comparison_reusable_tokens`.
    `part` is the part of the request that makes the difference.
    """

    type: str
    reason: str | None = None
    cache_missed_tokens: int | None = None
    comparison_reusable_tokens: int | None = None
    part: str | None = None


class ConversationSettings(Struct, frozen=True):
    """The conversation that a response belongs to."""

    id: str


class ResponseSettings(Struct):
    """The settings of the request. A number that was not given has OpenAI's default."""

    model: str
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationSettings | None = None
    tools: list[Object] = []
    tool_choice: str | Object = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    text: TextSettings = TextSettings({"type": "text"})
    reasoning: ReasoningSettings = ReasoningSettings()
    truncation: str = "disabled"
    store: bool = True
    background: bool = False
    background_options: BackgroundOptions | UnsetType = UNSET
    service_tier: str = "default"
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheSettings | UnsetType = UNSET
    prompt_cache_retention: str | None = None
    user: str | UnsetType = UNSET


class Response(ResponseSettings, kw_only=True, tag_field="object", tag="response"):
    """The response object. `unmet` lists the demands that the answer does not meet, if there are any.

    `notes` are on parts of the request without effect, if there are any. The messages are present if they
    were requested. `generations` has the usage of each, if there were several. `required_input` are the
    items that have to come before the input of a response that follows one which has ended with calls.
    """

    id: str
    created_at: int
    status: str
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[Raw]
    usage: ResponseUsage | None = None
    prompt_cache_diagnostics: CacheDiagnostics | UnsetType = UNSET
    input_messages: RawMessages | UnsetType = UNSET
    output_messages: RawMessages | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[events.GenerationUsage, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET
    moderation: ResponseModeration | UnsetType = UNSET
    required_input: list[dict[str, Any]] | UnsetType = UNSET


class ListedResponse(Struct, tag_field="object", tag="response"):
    """A response in a list, which has no more of it than this."""

    id: str
    created_at: int
    status: str
    model: str
    background: bool


class DeletedResponse(Struct):
    """The answer after a response was deleted."""

    id: str
    object: str = "response"
    deleted: bool = True


class TokenCounts(Struct, tag_field="object", tag="response.input_tokens"):
    """The number of tokens of a request's prompt."""

    input_tokens: int
    estimated: bool | UnsetType = UNSET


class Compaction(Struct, tag_field="object", tag="response.compaction"):
    """A compacted conversation: the items that replace it."""

    id: str
    created_at: int
    output: list[Raw]
    usage: ResponseUsage
