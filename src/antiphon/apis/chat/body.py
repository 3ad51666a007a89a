"""What Antiphon answers in Chat Completions.

Names and meanings are those of OpenAI's OpenAPI document
(CreateChatCompletionResponse, CreateChatCompletionStreamResponse). Beyond it:
`reasoning_content` and `reasoning`, two names that clients know thoughts by;
`stop_reason`, `token_ids` and the prompt's fields as vLLM has them; `error` of
a choice whose engine failed; `unmet`, the demands that an answer does not meet.
"""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.body import ChoiceError, CompletionUsage, PromptLogprobs


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
    """The log probabilities of a choice's text. There are none of refusals: no model makes them apart."""

    content: list[TokenLogprob]
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


class AnswerMessage(Struct):
    """What the assistant said."""

    role: str
    content: str | None
    refusal: None = None
    annotations: tuple[()] = ()
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
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class Delta(Struct):
    """What a chunk adds to a choice's message. `role` comes first, and once."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallFragment, ...] | UnsetType = UNSET
    function_call: FunctionFragment | UnsetType = UNSET


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


class ChatCompletionChunk(Struct, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream. `usage` is there, as null, if the client asked for usage at the end."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET
