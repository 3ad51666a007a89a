"""The wire types of the answers of Completions.

Names and meanings are those of OpenAI's OpenAPI document (CreateCompletionResponse), with vLLM's additions.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.completion_body import ChoiceError, CompletionUsage, PromptLogprobs
from antiphon.core.hosts import Note


class CompletionLogprobs(Struct):
    """The log probabilities of a text's tokens, as parallel lists.

    Each of `top_logprobs` is an encoded object: log probabilities by token. `text_offset` counts the
    characters before each token. The first token of an echoed prompt has no log probability.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[Raw | None]
    text_offset: list[int]


class CompletionChoice(Struct):
    """One completion, or the addition of a chunk to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    error: ChoiceError | UnsetType = UNSET
    unmet: tuple[str, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET


class Completion(Struct, tag_field="object", tag="text_completion"):
    """The body of a full answer, or one event of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET
    kv_transfer_params: Mapping[str, Any] | UnsetType = UNSET
