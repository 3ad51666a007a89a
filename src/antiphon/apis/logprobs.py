"""Tokens as log probabilities name them, in every API."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from msgspec import Raw
from msgspec.json import encode

from antiphon.apis.completion_body import PromptAlternative, PromptLogprobs
from antiphon.apis.envelope import PresentationOptions
from antiphon.core.chunks import Candidate, PromptToken, Token

LEAST_LOGPROB = -9999.0
"""Replaces a log probability that is too small for JSON, or unknown."""


def logprob_of(token: Token | Candidate) -> float:
    """A log probability as JSON can hold it."""
    value = token.logprob
    return value if value is not None and value > LEAST_LOGPROB else LEAST_LOGPROB


def namer(presentation: PresentationOptions) -> Callable[[Token | Candidate], str]:
    """How the client wants tokens to be named."""
    return id_of if presentation.tokens_as_ids else text_of


def id_of(token: Token | Candidate) -> str:
    """A token named by its id."""
    return f"token_id:{token.id}"


def text_of(token: Token | Candidate) -> str:
    """The text of a token, as far as it can be decoded."""
    return token.text if token.raw is None else token.raw.decode("utf-8", "replace")


def bytes_of(token: Token | Candidate) -> list[int]:
    """The bytes of a token."""
    return list(token.text.encode() if token.raw is None else token.raw)


class EncodedList:
    """A JSON array that grows by encoded entries, because an object for each would take more memory.

    The result of `raw` may be used until the next addition.
    """

    def __init__(self) -> None:
        self._encoded = bytearray(b"[]")

    def extend(self, entries: Iterable[Raw]) -> None:
        """Add entries."""
        encoded = self._encoded
        for entry in entries:
            encoded[-1:] = b"," if len(encoded) > 2 else b""
            encoded += entry
            encoded += b"]"

    @property
    def raw(self) -> Raw:
        """The whole array, without a copy."""
        return Raw(self._encoded)


def prompt_logprobs(tokens: Sequence[PromptToken]) -> PromptLogprobs:
    """The log probabilities of a prompt's tokens, encoded."""
    scored = [b"null" if token.logprob is None else encode(_alternatives(token)) for token in tokens]
    return cast("PromptLogprobs", Raw(b"[%b]" % b",".join(scored)))


def _alternatives(token: PromptToken) -> dict[int, PromptAlternative]:
    ranked = {
        top.id: PromptAlternative(logprob_of(top), rank, text_of(top))
        for rank, top in enumerate(token.top, start=1)
    }
    return {token.id: PromptAlternative(logprob_of(token), token.rank, text_of(token))} | ranked
