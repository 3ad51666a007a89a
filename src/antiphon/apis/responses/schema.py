"""The wire types of requests to the Responses API.

Requests are read leniently: unknown fields are ignored, null means absent. Names and meanings are those of
OpenAI's OpenAPI document (CreateResponse, TokenCountsBody, CompactResponseMethodPublicBody); in addition
there are the parameters that all APIs share (`SamplingParams`). Items and tools stay JSON here: see
`request_object`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.apis.moderation import ModerationParam
from antiphon.apis.request import (
    AtLeastOne,
    Count,
    Effort,
    MediaFallback,
    Metadata,
    NonEmptyStr,
    PromptCacheOptions,
    SafetyIdentifier,
    SamplingParams,
    ServiceTier,
    TokenLimit,
    Verbosity,
)
from antiphon.apis.request_object import Object
from antiphon.core.limits import HOUR

Detail = Literal["auto", "concise", "detailed"]
Id = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
"""The id of a stored object. Databases cannot hold U+0000 in text."""


class ReasoningOptions(Struct):
    """How much to reason, and what to show of it. `generate_summary` is the old name of `summary`."""

    effort: Effort | None = None
    mode: NonEmptyStr | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    summary: Detail | None = None
    generate_summary: Detail | None = None


class TextOptions(Struct):
    """The required form of the text."""

    format: Object | None = None
    verbosity: Verbosity | None = None


class ConversationReference(Struct):
    """The conversation that a response belongs to."""

    id: Id


class StreamOptions(Struct):
    """How to stream."""

    include_obfuscation: bool | None = None


class ContextManagement(Struct):
    """What to do with a long conversation: `compaction`, from this number of tokens on."""

    type: str
    compact_threshold: AtLeastOne | None = None


class PromptParams(SamplingParams, kw_only=True):
    """The common fields of all requests with a conversation.

    The sampling parameters are included, so that the tokens of an unchanged request can be counted.
    """

    model: NonEmptyStr
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationReference | None = None
    tools: list[Any] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Object | None = None
    documents: list[Object] | None = None
    previous_input_messages: list[Any] | None = None
    media_fallback: MediaFallback | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the items are read from, and added to."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named


class BackgroundOptions(Struct, frozen=True, omit_defaults=True):
    """How long a background response may take. `continuation_id` has no effect: see `notes`."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = None

    @property
    def seconds(self) -> int | None:
        """How many seconds it may take; None: as soon as possible."""
        return _WINDOWS.get(self.completion_window or "")


_WINDOWS = {"2h": 2 * HOUR, "8h": 8 * HOUR}


class CreateResponse(PromptParams, kw_only=True):
    """POST /v1/responses."""

    # Generation and storage of the answer
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    generate: bool | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    max_output_tokens: TokenLimit | None = None
    max_tool_calls: AtLeastOne | None = None
    context_management: list[ContextManagement] | None = None
    moderation: ModerationParam | None = None

    # Hints, returned and otherwise ignored
    service_tier: ServiceTier | None = None
    safety_identifier: SafetyIdentifier | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None

    # Without effect: see `notes`
    access_programs: Any = None
    image: Any = None

    # Presentation, and the length of reasoning
    top_logprobs: Count | None = None
    thinking_token_budget: Count | None = None
    include_reasoning: bool | None = None
    enable_response_messages: bool | None = None

    @property
    def warms(self) -> bool:
        """Only the prompt is computed: there is no output."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and bool(options.prewarm))


class CountTokens(CreateResponse):
    """POST /v1/responses/input_tokens: a request for a response whose prompt is counted."""


class CompactRequest(CreateResponse):
    """POST /v1/responses/compact."""
