"""The wire types of Chat Completions: requests, then answers.

Names and meanings are those of OpenAI's OpenAPI document
(CreateChatCompletionRequest, CreateChatCompletionResponse,
CreateChatCompletionStreamResponse) and, where that has none, vLLM's. History is
read most leniently: what an earlier answer got wrong must not end a conversation.

Answers have more than OpenAI's: `reasoning_content` and `reasoning`, the two names
that clients know reasoning by; `stop_reason`, `token_ids` and the fields of the
prompt as vLLM has them; `error` of a choice whose engine failed; `unmet`, the
requirements that an answer does not meet; `generations`, the usage of each of several;
`notes`, on what of a request has no effect.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon.apis.completion_body import ChoiceError, CompletionUsage, PromptLogprobs
from antiphon.apis.given import Object
from antiphon.apis.request import (
    MAX_CHOICES,
    Alternatives,
    AtLeastOne,
    Choices,
    Count,
    Effort,
    MediaFallback,
    Metadata,
    NonEmptyStr,
    Request,
    TokenLimit,
    Verbosity,
)
from antiphon.core.events import GenerationUsage
from antiphon.core.hosts import Note


class ContentPart(Struct):
    """A part of a message: a text, or media, each in the field of its type."""

    type: str
    text: str | None = None
    refusal: str | None = None
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
    """A custom tool: one that takes text as it is."""

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
    """A tool, as a tool choice names it: one that the server runs by its type alone."""

    type: str | None = None
    function: NamedTool | None = None
    custom: NamedTool | None = None


class AllowedTools(Struct):
    """The only tools that may be called, and whether one must be."""

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


class Place(Struct):
    """Where the user is, about: texts."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class ApproximatePlace(Struct, tag="approximate"):
    """The only way to say it."""

    approximate: Place


class WebSearchOptions(Struct):
    """Asks for a search of the web, and says how."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: ApproximatePlace | None = None


class ChatOptions(Request, kw_only=True):
    """Everything that a request may say but its messages."""

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
    top_logprobs: Alternatives | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
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


class BatchRequest(ChatOptions, kw_only=True):
    """POST /v1/chat/completions/batch: several conversations, one answer to each."""

    messages: Annotated[list[Messages], Meta(min_length=1, max_length=MAX_CHOICES)]


class TopLogprob(Struct):
    """One of the most likely tokens. `bytes` are its own, also where they are no whole character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """A token of the answer, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct):
    """The log probabilities of a choice's text: encoded `TokenLogprob`s.

    There are none of refusals: no model makes them apart.
    """

    content: list[Raw]
    refusal: None = None


class FunctionFragment(Struct, omit_defaults=True):
    """A called function, or the next piece of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomFragment(Struct, omit_defaults=True):
    """A called custom tool, or the next piece of its input."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCallFragment(Struct):
    """A call (in a full answer, without `index`) or the next piece of one."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionFragment | UnsetType = UNSET
    custom: CustomFragment | UnsetType = UNSET


class UrlCitation(Struct):
    """A page of the web that is cited: by the mark from `start_index` to `end_index` of the content."""

    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(Struct, tag_field="type", tag="url_citation"):
    """A citation."""

    url_citation: UrlCitation


class AnswerMessage(Struct):
    """What the assistant said."""

    role: str
    content: str | None
    refusal: None = None
    annotations: tuple[Annotation, ...] = ()
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallFragment] | UnsetType = UNSET
    function_call: FunctionFragment | UnsetType = UNSET


class Choice(Struct):
    """One answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    error: ChoiceError | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[GenerationUsage, ...] | UnsetType = UNSET


class ChatCompletion(Struct, tag_field="object", tag="chat.completion"):
    """The body of a full answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    system_fingerprint: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    metadata: Mapping[str, str] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    kv_transfer_params: Mapping[str, Any] | UnsetType = UNSET


class Delta(Struct):
    """What a chunk adds to a choice's message. `role` comes first, and once."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallFragment, ...] | UnsetType = UNSET
    function_call: FunctionFragment | UnsetType = UNSET
    annotations: tuple[Annotation, ...] | UnsetType = UNSET


class ChunkChoice(Struct):
    """What a chunk adds to one choice."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    error: ChoiceError | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[GenerationUsage, ...] | UnsetType = UNSET


class ChatCompletionChunk(Struct, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream. `usage` is there, as null, if the client asked for usage at the end.

    The first chunk has the `notes`.
    """

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET
