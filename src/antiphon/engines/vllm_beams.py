"""Beam search: several answers are generated in parallel, and at each token only the most likely are kept.

vLLM's core samples tokens, and has no beam search. So each step requests one token for each beam, with the
most likely alternatives, as vLLM's own server does; scores and order are the same as there. No part of an
answer is known before the end.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from heapq import nlargest
from typing import Protocol

from msgspec import Struct

from antiphon.core.chunks import Finish, FinishReason

Row = tuple[list[int], list[float]]
"""For one position: tokens and their log probabilities. The first is the sampled one."""


class Beam(Struct, frozen=True):
    """The beginning of an answer, `total` is its log probability. `finish` is set if it has ended."""

    ids: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
    total: float = 0.0
    finish: Finish | None = None

    def score(self, parameters: "BeamParameters") -> float:
        """The score that beams are ordered by: per token, as the version of vLLM counts them."""
        length = parameters.length(parameters.prompt, len(self.ids), ended=self.finish is not None)
        return self.total / math.pow(max(length, 1), parameters.penalty)


class BeamLength(Protocol):
    """The number of tokens that the log probability of a beam is divided by, see `VllmVersion`."""

    def __call__(self, prompt: int, written: int, *, ended: bool) -> int: ...


class BeamParameters(Struct, frozen=True):
    """The size of a search: the number of beams, the most tokens of each, and the tokens of the prompt.

    `length` counts the tokens of a beam. `ends` are the tokens that end an answer, `stops` those of them that
    the client named. `penalty` is the exponent of the length that log probabilities are divided by.
    """

    width: int
    tokens: int
    prompt: int
    length: BeamLength
    ends: Collection[int]
    stops: Collection[int] = ()
    penalty: float = 1.0


async def search(
    parameters: BeamParameters, rows: Callable[[Sequence[Beam]], Awaitable[Sequence[Row]]]
) -> list[Beam]:
    """The most likely answers, the best first; `rows` has the candidates for the next token of each beam."""
    beams, ended = [Beam()], list[Beam]()
    for _ in range(parameters.tokens):
        following = await rows(beams)
        successors = [
            _after(beam, row, token, logprob, parameters)
            for beam, row in zip(beams, following, strict=True)
            for token, logprob in dict(zip(*row, strict=True)).items()
        ]
        ended += [beam for beam in successors if beam.finish is not None]
        going_on = (beam for beam in successors if beam.finish is None)
        beams = nlargest(parameters.width, going_on, key=lambda beam: beam.total)
        if not beams:
            break
    return nlargest(parameters.width, ended + beams, key=lambda beam: beam.score(parameters))


def _after(beam: Beam, row: Row, token: int, logprob: float, parameters: BeamParameters) -> Beam:
    """The beam followed by this token, which may end it."""
    ids, logprobs = row
    row = [token, *ids[1:]], [logprob, *logprobs[1:]]
    finish = None
    if token in parameters.ends:
        finish = Finish(FinishReason.STOP, token if token in parameters.stops else None)
    return Beam((*beam.ids, token), (*beam.rows, row), beam.total + logprob, finish)
