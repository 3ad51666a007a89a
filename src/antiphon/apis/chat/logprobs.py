"""Tokens → the log probabilities of a choice's text.

Only tokens of visible text are shown, or of some: reasoning, calls and
markup are other spans. A token's bytes are all that it has, also those of a
character that another token completes.
"""

from collections.abc import Iterable

from antiphon.apis.chat.schema import ChoiceLogprobs, TokenLogprob, TopLogprob
from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.logprobs import bytes_of, logprob_of, namer
from antiphon.core.chunks import Token


def choice_logprobs(tokens: Iterable[Token], presentation: PresentationOptions) -> ChoiceLogprobs:
    """The entries of these tokens, each with as many alternatives as were asked for."""
    name, most = namer(presentation), presentation.logprobs or 0
    return ChoiceLogprobs(
        [
            TokenLogprob(
                name(token),
                logprob_of(token),
                bytes_of(token),
                [TopLogprob(name(top), logprob_of(top), bytes_of(top)) for top in token.top[:most]],
            )
            for token in tokens
        ]
    )
