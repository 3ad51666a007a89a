"""The wire types of requests to the Messages API.

Requests are read leniently: unknown fields are ignored, null means absent. Names and meanings are
Anthropic's; in addition there are the parameters that all APIs share (`SamplingParams`). Content blocks and
tools stay JSON here: see `apis/request_object.py`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.apis.request import AtLeastOne, Count, MediaFallback, NonEmptyStr, SamplingParams, StopStrings
from antiphon.apis.request_object import Object

MAX_MESSAGES = 100_000
"""The most messages of one request, as in Anthropic's API."""


class Thinking(Struct):
    """Whether to reason, how much, and what to show of it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: AtLeastOne | None = None
    display: Literal["summarized", "omitted"] | None = None
    block_binding: Object | None = None


class OutputFormat(Struct):
    """The required form of the text."""

    type: Literal["json_schema"]
    schema: Object


class OutputConfig(Struct):
    """How much to write, and in which form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: Object | None = None


class RequestMessage(Struct):
    """A message of a role: a text, or content blocks.

    One of the system may be without any, with settings from there on; its text may be for one turn only.
    """

    role: str
    content: str | list[Any] | None = None
    output_config: OutputConfig | None = None
    clear_at: Literal["next_user_message", "never"] | None = None


class ToolChoiceObject(Struct):
    """Whether a tool has to be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Diagnostics(Struct):
    """Whether to say why the cache missed, compared with the prompt of this message."""

    previous_message_id: str | None = None


class CountTokens(SamplingParams, kw_only=True):
    """POST /v1/messages/count_tokens, and the common fields of this and of requests for an answer."""

    model: NonEmptyStr
    messages: Annotated[list[RequestMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: ToolChoiceObject | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: Object | None = None
    context_management: Object | None = None
    compaction: Object | None = None
    media_fallback: MediaFallback | None = None
    mcp_servers: list[Any] | None = None

    # Hints
    betas: Any = None
    billing_policy: Any = None
    cache_control: Any = None
    metadata: Any = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    # Without effect: see `notes`
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None

    # Refused: see `accept.REFUSED`
    container: Any = None
    thread: Any = None


class CreateMessage(CountTokens, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Count
    diagnostics: Diagnostics | None = None
    stop_sequences: StopStrings | None = None
    stream: bool | None = None
