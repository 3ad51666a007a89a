"""Tokens → the legacy lists of log probabilities."""

from collections.abc import Iterable

from antiphon.apis.completions.schema import CompletionLogprobs
from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.logprobs import logprob_of, namer
from antiphon.core.chunks import Token


def completion_logprobs(
    tokens: Iterable[Token], presentation: PresentationOptions, offset: int
) -> CompletionLogprobs:
    """The lists for these tokens, the first of which stands behind `offset` characters."""
    name = namer(presentation)
    lists = CompletionLogprobs([], [], [], [])
    for token in tokens:
        lists.tokens.append(name(token))
        lists.token_logprobs.append(None if token.logprob is None else logprob_of(token))
        lists.top_logprobs.append(_top(token, presentation))
        lists.text_offset.append(offset)
        offset += len(token.text)
    return lists


def _top(token: Token, presentation: PresentationOptions) -> dict[str, float] | None:
    """The most likely tokens, and the one that was drawn if it is not among them."""
    if token.logprob is None or not presentation.logprobs:
        return None
    name = namer(presentation)
    top = {name(other): logprob_of(other) for other in token.top[: presentation.logprobs]}
    return {name(token): logprob_of(token)} | top
