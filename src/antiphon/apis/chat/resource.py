"""The wire types of the answers of Chat Completions.

Names and meanings are those of OpenAI's OpenAPI document (CreateChatCompletionResponse,
CreateChatCompletionStreamResponse). Additional fields are: `reasoning_content` and `reasoning`, the two
names that clients use for reasoning; `stop_reason`, `token_ids` and the fields of the prompt, as in vLLM;
`error` of a choice whose engine failed; `unmet`, the demands that an answer does not meet; `generations`,
the usage of each of several; `notes`, on parts of a request without effect.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.completion_body import ChoiceError, CompletionUsage, PromptLogprobs
from antiphon.apis.moderation import ChatModeration
from antiphon.core.events import GenerationUsage
from antiphon.core.hosts import Note


class TopLogprob(Struct):
    """One of the most likely tokens. `bytes` are its own, even if they are not a whole character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """A token of the answer, and the most likely ones at its position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct):
    """The log probabilities of a choice's text: encoded `TokenLogprob`s.

    There are none of refusals: open models do not mark these.
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
    """A call (in a full answer, without `index`), or the next fragment of one."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionFragment | UnsetType = UNSET
    custom: CustomFragment | UnsetType = UNSET


class UrlCitation(Struct):
    """A page of the web that is cited, with the mark from `start_index` to `end_index` of the content."""

    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(Struct, tag_field="type", tag="url_citation"):
    """A citation."""

    url_citation: UrlCitation


class AnswerMessage(Struct):
    """The assistant's message."""

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
    notes: tuple[Note, ...] | UnsetType = UNSET


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
    moderation: ChatModeration | UnsetType = UNSET


class Delta(Struct):
    """The addition of a chunk to a choice's message. `role` is in the first chunk only."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallFragment, ...] | UnsetType = UNSET
    function_call: FunctionFragment | UnsetType = UNSET
    annotations: tuple[Annotation, ...] | UnsetType = UNSET


class ChunkChoice(Struct):
    """The addition of a chunk to one choice."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    error: ChoiceError | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[GenerationUsage, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET


class ChatCompletionChunk(Struct, tag_field="object", tag="chat.completion.chunk"):
    """One event of a stream. `usage` is null before the last, if the client requested usage.

    The first chunk has the `notes`, the last one before the usage `moderation`, if that was requested.
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
    moderation: ChatModeration | UnsetType = UNSET
