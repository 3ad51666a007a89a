"""Decisions of a model behind a server that takes conversations only, and tells the likeliest tokens.

Each question is asked in a conversation of its own, and the answer is cut after a token. There is no prefill.
Labels are known by their texts, and one that is not among the likeliest tokens has the highest probability
that it can have.
"""

from collections.abc import Callable

from antiphon.core.decision import Decision
from antiphon.core.turn import Turn
from antiphon.decide import wording
from antiphon.decide.reads import Read, reads_of
from antiphon.engines.engine import Engine, GenerationRequest
from antiphon.engines.next_token import score_answers
from antiphon.run.decisions import (
    Answers,
    DecisionOptions,
    Outcome,
    orders_for,
    read_answers,
    shared_sampling,
    with_question,
)
from antiphon.run.direct_answers import ON
from antiphon.run.label_tokens import texts_of

VERSION = f"{wording.VERSION}-chat"
"""The version of prompts, as far as it is known here."""

OFF = dict.fromkeys(ON, False)
"""The variables that turn reasoning off. A server without a switch for it ignores them."""


async def read_by_chat(
    engine: Engine,
    decision: Decision,
    options: DecisionOptions,
    request_of: Callable[[Turn], GenerationRequest],
    tokens_of: Callable[[Turn], int],
) -> Outcome:
    """What is read for a decision. Raises RequestError, EngineError.

    `request_of` makes the request for a turn, and `tokens_of` estimates the tokens of its prompt.
    """
    plans = [reads_of(question, orders_for(question, decision, options)) for question in decision.questions]

    def turn_of(read: Read | None = None) -> Turn:
        items = decision.items if read is None else with_question(decision.items, read.parts)
        return Turn(
            decision.model,
            items,
            variables={**decision.variables, **OFF},
            sampling=shared_sampling(decision.sampling),
            parameters=decision.parameters,
        )

    reads = [read for plan in plans for order in plan for read in order]
    turns = [turn_of(read) for read in reads]
    results = await score_answers(engine, [request_of(turn) for turn in turns])
    readings = iter(read_answers([texts_of(read.labels) for read in reads], results))
    answers = (
        Answers(question, plan, tuple(tuple(next(readings) for _ in order) for order in plan))
        for question, plan in zip(decision.questions, plans, strict=True)
    )
    shared = tokens_of(turn_of())
    return Outcome(
        answers=(*answers,),
        prompt_tokens=shared + sum(max(0, tokens_of(turn) - shared) for turn in turns),
        cached_tokens=0,
        reads=len(reads),
    )
