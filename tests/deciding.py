"""A model that decides without an engine: by a digest of what it is asked, or as it is told."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from unittest.mock import patch

from antiphon.core.decision import Decision, Question, Verdict, Verdicts
from antiphon.core.items import text_in
from antiphon.run.token_model import TokenModel

Decider = Callable[[Decision], Verdicts]


def digested(question: Question) -> Verdict:
    """Probabilities that depend on all that a question says, and on nothing else."""
    said = f"{text_in(question.instructions)} {question.options}".encode()
    weights = [1 + sha256(b"%d %s" % (index, said)).digest()[0] for index in range(len(question.options))]
    return Verdict(tuple(weight / sum(weights) for weight in weights), 0.75, label_is_likeliest=True)


def by_digest(decision: Decision) -> Verdicts:
    verdicts = tuple(map(digested, decision.questions))
    return Verdicts(verdicts, 131, 100, len(verdicts), "1-a")


def told(*verdicts: tuple[float, ...]) -> Decider:
    """These probabilities for the questions, in their order."""
    answers = tuple(Verdict(each, 0.9, label_is_likeliest=True) for each in verdicts)
    return lambda _: Verdicts(answers, 131, 100, len(answers), "1-a")


_deciders: list[tuple[Decider, list[Decision]]] = []


@contextmanager
def deciding(decide: Decider = by_digest) -> Iterator[list[Decision]]:
    """Every model decides so while the block runs; yields what they are asked.

    Of blocks that overlap, in whatever order they end, the one that began last says how.
    """
    entry: tuple[Decider, list[Decision]] = (decide, [])
    if not _deciders:
        _patch.start()
    _deciders.append(entry)
    try:
        yield entry[1]
    finally:
        _deciders.remove(entry)
        if not _deciders:
            _patch.stop()


async def _decided(_: TokenModel, decision: Decision) -> Verdicts:
    decide, asked = _deciders[-1]
    asked.append(decision)
    await asyncio.sleep(0)
    return decide(decision)


_patch = patch.object(TokenModel, "decide", _decided)
