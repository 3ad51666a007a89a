"""Tokens → log probabilities, as both specifications write them."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from antiphon.apis.logprobs import bytes_of, logprob_of, text_of
from antiphon.apis.responses.resource import LogProb, TopLogProb
from antiphon.core.chunks import Token

_encode = msgspec.json.Encoder().encode


def to_logprobs(tokens: Iterable[Token]) -> list[Raw]:
    """An encoded `LogProb` for each token."""
    return [Raw(_encode(_logprob(token))) for token in tokens]


def _logprob(token: Token) -> LogProb:
    top = [TopLogProb(text_of(other), logprob_of(other), bytes_of(other)) for other in token.top]
    return LogProb(text_of(token), logprob_of(token), bytes_of(token), top)
