"""What the stream and the full answer of one chat completion have in common."""

from collections.abc import Iterable

from msgspec import Struct

from antiphon.apis.chat.schema import CompletionTokensDetails, CompletionUsage, PromptTokensDetails
from antiphon.core.events import Usage


class Envelope(Struct, frozen=True):
    """The identity of an answer. `model` is the name that the client used."""

    id: str
    model: str
    created: int
    prompt_tokens: int


def total(prompt_tokens: int, usages: Iterable[Usage]) -> CompletionUsage:
    """The usage of a request whose choices used this. They share one prompt."""
    seen = list(usages)
    completion = sum(usage.completion_tokens for usage in seen)
    return CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        prompt_tokens_details=PromptTokensDetails(max((u.cached_tokens for u in seen), default=0)),
        completion_tokens_details=CompletionTokensDetails(sum(u.reasoning_tokens for u in seen)),
    )
