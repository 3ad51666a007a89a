"""Decisions of a model behind a server that takes conversations only, and tells the likeliest tokens.

Each question is asked in a conversation of its own, and the answer is cut after a token. There is no prefill.
Labels are known by their texts, and one that is not among the likeliest tokens has the highest probability
that it can have.
"""

from collections.abc import Callable

from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import naming
from antiphon.core.limits import Limits
from antiphon.core.turn import Turn
from antiphon.decide import wording
from antiphon.decide.reads import Read, reads_of
from antiphon.engines.engine import Engine, GenerationRequest
from antiphon.engines.next_token import score_answers
from antiphon.run.decisions import (
    Answers,
    DecisionOptions,
    Outcome,
    check_reads,
    check_tells,
    orders_for,
    read_answers,
    shared_sampling,
    verdicts_of,
    with_question,
)
from antiphon.run.direct_answers import ON
from antiphon.run.label_tokens import texts_of

VERSION = f"{wording.VERSION}-chat"
"""The version of prompts, as far as it is known here."""

OFF = dict.fromkeys(ON, False)
"""The variables that turn reasoning off. A server without a switch for it ignores them."""


class ChatDecider:
    """Reads decisions of one such model.

    `request_of` makes the request for a turn, and `tokens_of` estimates the tokens of its prompt.
    """

    def __init__(
        self,
        engine: Engine,
        request_of: Callable[[Turn], GenerationRequest],
        tokens_of: Callable[[Turn], int],
        options: DecisionOptions,
        limits: Limits,
    ) -> None:
        self._engine = engine
        self._request_of = request_of
        self._tokens_of = tokens_of
        self._options = options
        self._limits = limits

    async def decide(self, decision: Decision) -> Verdicts:
        """The answers to all questions. Raises RequestError, EngineError."""
        check_tells(self._engine)
        calibration = self._options.calibration
        if calibration is not None:
            calibration.check_version(VERSION)
        with naming(decision.parameters):
            outcome = await self._read(decision)
        return verdicts_of(outcome, VERSION, calibration)

    async def _read(self, decision: Decision) -> Outcome:
        questions = decision.questions
        plans = [reads_of(question, orders_for(question, decision, self._options)) for question in questions]
        reads = [read for plan in plans for order in plan for read in order]
        turns = [_turn(decision, read) for read in reads]
        shared = self._tokens_of(_turn(decision))
        tokens = shared + sum(max(0, self._tokens_of(turn) - shared) for turn in turns)
        check_reads(self._limits, len(reads), tokens)
        results = await score_answers(self._engine, [self._request_of(turn) for turn in turns])
        readings = iter(read_answers([texts_of(read.labels) for read in reads], results))
        answers = (
            Answers(question, plan, tuple(tuple(next(readings) for _ in order) for order in plan))
            for question, plan in zip(questions, plans, strict=True)
        )
        return Outcome((*answers,), prompt_tokens=tokens, cached_tokens=0, reads=len(reads))


def _turn(decision: Decision, read: Read | None = None) -> Turn:
    """The conversation with the question of a read, or without one."""
    return Turn(
        decision.model,
        decision.items if read is None else with_question(decision.items, read.parts),
        variables={**decision.variables, **OFF},
        sampling=shared_sampling(decision.sampling),
        parameters=decision.parameters,
    )
