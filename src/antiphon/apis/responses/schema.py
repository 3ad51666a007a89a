"""The wire types of what clients send to the Responses API.

Requests are read leniently: unknown fields are ignored, null means absent.
Names and meanings are those of OpenAI's OpenAPI document (CreateResponse,
TokenCountsBody, CompactResponseMethodPublicBody); behind them come sampling
parameters that other servers take. Items and tools stay JSON here: see `given`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.apis.responses.given import Object

MAX_STOPS = 16
"""The most `stop` strings in one request."""
MAX_TOP_LOGPROBS = 20
"""The most alternatives to a token that can be asked for."""

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
TopK = Annotated[int, Meta(ge=-1)]
Name = Annotated[str, Meta(min_length=1)]
StopStrings = Annotated[list[Name], Meta(max_length=MAX_STOPS)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""What a client notes about something that is stored: 16 keys of 64 characters with values of 512."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Detail = Literal["auto", "concise", "detailed"]


class Reasoning(Struct):
    """How much to think, and what to show of it. `generate_summary` is the old name of `summary`."""

    effort: Effort | None = None
    summary: Detail | None = None
    generate_summary: Detail | None = None


class Text(Struct):
    """What the text has to look like."""

    format: Object | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ConversationReference(Struct):
    """The conversation that a response belongs to."""

    id: str


class StreamOptions(Struct):
    """How to stream."""

    include_obfuscation: bool | None = None


class ContextManagement(Struct):
    """What to do with a conversation that grows: `compaction`, from so many tokens on."""

    type: str
    compact_threshold: Count | None = None


class StructuredOutputs(Struct):
    """What the text has to look like, in the words of other servers. One of these."""

    json: Object | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Object | str | None = None


class Prompting(Struct, kw_only=True):
    """What a prompt is made of: what all requests about a conversation have in common."""

    model: Name
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[Any] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Object | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the items come from, and go to."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named


class CountTokens(Prompting):
    """POST /v1/responses/input_tokens."""


class CompactRequest(Prompting):
    """POST /v1/responses/compact."""


class CreateResponse(Prompting, kw_only=True):
    """POST /v1/responses."""

    # How the answer is made and kept
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    context_management: list[ContextManagement] | None = None
    prompt: Object | None = None
    moderation: Object | None = None

    # Hints, told back and otherwise ignored
    service_tier: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None

    # How tokens are drawn
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Positive | None = None
    logit_bias: dict[int, Bias] | None = None
    seed: int | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    stop: Name | StopStrings | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    priority: int | None = None
    cache_salt: Name | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0)] | None = None
    include_reasoning: bool | None = None
