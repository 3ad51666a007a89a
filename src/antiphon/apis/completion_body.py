"""Common parts of the answers of OpenAI's older APIs: usage, failures of choices, tokens of the prompt."""

from collections.abc import Iterable

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.chunks import FinishReason
from antiphon.core.events import Usage


class PromptTokensDetails(Struct):
    """`cached_tokens` are tokens of the prompt that the engine did not have to compute.

    If the prompt has media, `image_tokens` are theirs, of any kind, and `text_tokens` all others.
    """

    cached_tokens: int
    text_tokens: int | UnsetType = UNSET
    image_tokens: int | UnsetType = UNSET


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


class ChoiceError(Struct):
    """Why a choice has no end: its engine failed."""

    message: str
    type: str = "server_error"
    param: None = None
    code: str = "engine_error"


class PromptAlternative(Struct):
    """A candidate at a position of the prompt. Its rank is null if the engine does not tell it."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptAlternative] | None]
"""For each token of a prompt, the candidates by id; null if they are unknown, as for the first."""


def total(prompt_tokens: int, usages: Iterable[Usage], prompts: int = 1) -> CompletionUsage:
    """The usage of a request whose choices used this. Those of each of the first `prompts` share it."""
    completion = reasoning = cached = media = count = 0
    for usage in usages:
        prompt_tokens += usage.prompt_tokens
        completion += usage.completion_tokens
        reasoning += usage.reasoning_tokens
        cached = max(cached, usage.cached_tokens)
        media += usage.media_tokens
        count += 1
    details = PromptTokensDetails(cached)
    if media:
        media = media * prompts // count
        details.text_tokens, details.image_tokens = prompt_tokens, media
    prompt_tokens += media
    return CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        prompt_tokens_details=details,
        completion_tokens_details=CompletionTokensDetails(reasoning),
    )


_FINISH_REASONS = {
    # (why the engine stopped, are calls shown): finish_reason
    (FinishReason.STOP, False): "stop",
    (FinishReason.STOP, True): "tool_calls",
    (FinishReason.LENGTH, False): "length",
    (FinishReason.LENGTH, True): "length",
    (FinishReason.CONTENT_FILTER, False): "content_filter",
    (FinishReason.CONTENT_FILTER, True): "content_filter",
    # OpenAI's word for a limit of the server's.
    (FinishReason.TOOL_LIMIT, False): "length",
    (FinishReason.TOOL_LIMIT, True): "length",
    # No answer of this API is steered.
    (FinishReason.STEERED, False): "length",
    (FinishReason.STEERED, True): "length",
    # Not OpenAI's: other choices of the answer may have succeeded, so the status cannot be an error.
    (FinishReason.ERROR, False): "error",
    (FinishReason.ERROR, True): "error",
}


def finish_reason(reason: FinishReason, calls: int) -> str:
    """OpenAI's `finish_reason` for a choice that shows this many calls.

    `length` has precedence: a client must not mistake a cut call for a complete one. A malformed call counts
    as a call: agents continue with it, and handle its bad arguments there.
    """
    return _FINISH_REASONS[reason, calls > 0]
