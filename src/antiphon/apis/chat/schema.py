"""The wire types of Chat Completions, as Antiphon reads and writes them.

Requests are read leniently: unknown fields are ignored, null means absent.
Names and meanings are those of OpenAI's OpenAPI document
(CreateChatCompletionRequest, CreateChatCompletionResponse,
CreateChatCompletionStreamResponse); `reasoning_content` is the field's common
extension for thoughts.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_CHOICES = 128
"""The most that `n` may ask for, as OpenAI has it."""
MAX_STOPS = 16
"""The most `stop` strings in one request."""

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenLimit = Annotated[int, Meta(ge=1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
StopString = Annotated[str, Meta(min_length=1)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOPS)]


# What clients send


class ContentPart(Struct):
    """A part of a message. Only text parts are understood so far."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(Struct):
    """The function of an earlier call. Some clients send the arguments as an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct):
    """A call that the assistant made earlier."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class RequestMessage(Struct):
    """A message of any role; which fields count depends on the role."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class RequestFunction(Struct):
    """A function that the model may call."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class RequestTool(Struct):
    """A tool. Only functions are understood so far."""

    type: str
    function: RequestFunction | None = None


class StreamOptions(Struct):
    """How to stream."""

    include_usage: bool | None = None


class ResponseFormat(Struct):
    """What the answer has to look like."""

    type: str


class ChatRequest(Struct):
    """POST /v1/chat/completions."""

    model: str
    messages: Annotated[list[RequestMessage], Meta(min_length=1)]
    tools: list[RequestTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stop: StopString | StopStrings | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def wants_usage(self) -> bool:
        """A stream shall end with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


# What Antiphon answers


class PromptTokensDetails(Struct):
    """`cached_tokens` are prompt tokens that the engine did not have to compute."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """`reasoning_tokens` are part of the completion."""

    reasoning_tokens: int


class CompletionUsage(Struct):
    """Tokens of the whole request, over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class FunctionFragment(Struct, omit_defaults=True):
    """A called function, or the next piece of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallFragment(Struct):
    """A call (in a full answer, without `index`) or the next piece of one."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionFragment | UnsetType = UNSET


class AnswerMessage(Struct):
    """What the assistant said."""

    role: str
    content: str | None
    refusal: None = None
    annotations: tuple[()] = ()
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallFragment] | UnsetType = UNSET


class Choice(Struct):
    """One answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(Struct, tag_field="object", tag="chat.completion"):
    """The body of a full answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


class Delta(Struct):
    """What a chunk adds to a choice's message. `role` comes first, and once."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallFragment, ...] | UnsetType = UNSET


class ChunkChoice(Struct):
    """What a chunk adds to one choice."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class ChatCompletionChunk(Struct, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream. `usage` is there, as null, if the client asked for usage."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET
