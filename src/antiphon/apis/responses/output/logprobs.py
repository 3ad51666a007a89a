"""Tokens → log probabilities, as both specifications write them."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from antiphon.apis.responses.resource import LogProb, TopLogProb
from antiphon.core.chunks import Candidate, Token

_encode = msgspec.json.Encoder().encode

FLOOR = -9999.0
"""Stands for a probability of zero, which has no logarithm in JSON, and for one that nobody knows."""


def to_logprobs(tokens: Iterable[Token]) -> list[Raw]:
    """An encoded `LogProb` for each token."""
    return [Raw(_encode(_logprob(token))) for token in tokens]


def _logprob(token: Token) -> LogProb:
    top = [_candidate(other) for other in token.top]
    return LogProb(token.text, _finite(token.logprob), _bytes(token), top)


def _candidate(candidate: Candidate) -> TopLogProb:
    return TopLogProb(candidate.text, _finite(candidate.logprob), _bytes(candidate))


def _bytes(token: Token | Candidate) -> list[int]:
    return list(token.text.encode(errors="replace") if token.raw is None else token.raw)


def _finite(logprob: float | None) -> float:
    return FLOOR if logprob is None or logprob < FLOOR else logprob
