"""The wire types of requests to Chat Completions.

Names and meanings are those of OpenAI's OpenAPI document (CreateChatCompletionRequest), and vLLM's for
parameters that it does not have. History is read most leniently: a mistake in an earlier answer must not end
a conversation.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.apis.moderation import ModerationParam
from antiphon.apis.request import (
    MAX_CHOICES,
    AtLeastOne,
    Choices,
    Count,
    Effort,
    MediaFallback,
    Metadata,
    NonEmptyStr,
    PromptCacheOptions,
    Request,
    TokenLimit,
    Verbosity,
)
from antiphon.apis.request_object import Object


class ContentPart(Struct):
    """A part of a message: a text, reasoning, or media, each in the field of its type."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: "str | list[ContentPart] | None" = None
    image_url: Any = None
    audio_url: Any = None
    video_url: Any = None
    input_audio: Any = None
    file: Any = None


class CalledFunction(Struct):
    """The function of an earlier call. Some clients send the arguments as an object."""

    name: str | None
    arguments: str | dict[str, Any] | None = None


class CalledCustom(Struct):
    """The custom tool of an earlier call."""

    name: str | None
    input: str | None = None


class ToolCall(Struct):
    """A call that the assistant made earlier, of a function or of a custom tool."""

    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    id: str | None = None
    type: str | None = None


class RequestMessage(Struct):
    """A message of any role; which fields count depends on the role."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None
    tools: list[Object] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: Any = None


class RequestFunction(Struct):
    """A function that the model may call."""

    name: NonEmptyStr
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolGrammar(Struct):
    """The grammar that the input of a custom tool follows."""

    definition: NonEmptyStr
    syntax: Literal["lark", "regex"]


class PlainInput(Struct, tag="text"):
    """Any text."""


class GrammarInput(Struct, tag="grammar"):
    """Text of a grammar."""

    grammar: ToolGrammar


class RequestCustom(Struct):
    """A custom tool: its input is text."""

    name: NonEmptyStr
    description: str | None = None
    format: PlainInput | GrammarInput | None = None


class RequestTool(Struct):
    """A tool: a function, or a custom tool; of those that the server runs, the type. See `chat.tools`."""

    type: str
    function: RequestFunction | None = None
    custom: RequestCustom | None = None


class NamedTool(Struct):
    """A tool, by its name."""

    name: str


class ToolReference(Struct):
    """A tool in a tool choice: a server tool is named by its type alone."""

    type: str | None = None
    function: NamedTool | None = None
    custom: NamedTool | None = None


class AllowedTools(Struct):
    """The only tools that may be called, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Meta(min_length=1)]


class ToolChoiceObject(Struct):
    """One tool that must be called, or several that may be. A tool of a remote server also has its label."""

    type: str
    server_label: str | None = None
    name: str | None = None
    function: NamedTool | None = None
    custom: NamedTool | None = None
    allowed_tools: AllowedTools | None = None


class WebSearchLocation(Struct):
    """Where the user is, about: texts."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class UserLocation(Struct, tag="approximate"):
    """The only type of location."""

    approximate: WebSearchLocation


class WebSearchOptions(Struct):
    """Requests a search of the web, with settings."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None


class ThinkingSwitch(Struct):
    """Whether to reason, as other servers have it; `adaptive` and `auto` leave that to the model."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Count | None = None


class ChatOptions(Request, kw_only=True):
    """All parameters of a request except the messages."""

    tools: list[Object] | None = None
    tool_choice: str | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: AtLeastOne | None = None
    web_search_options: WebSearchOptions | None = None
    functions: list[RequestFunction] | None = None
    function_call: str | NamedTool | None = None
    best_of: Choices | None = None
    media_fallback: MediaFallback | None = None
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    moderation: ModerationParam | None = None
    thinking: bool | ThinkingSwitch | None = None
    think: bool | Effort | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Count | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    response_prefix: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None


Messages = Annotated[list[RequestMessage], Meta(min_length=1)]


class ChatRequest(ChatOptions, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages


class BatchChatRequest(ChatOptions, kw_only=True):
    """POST /v1/chat/completions/batch: several conversations, one answer to each."""

    messages: Annotated[list[Messages], Meta(min_length=1, max_length=MAX_CHOICES)]
