"""Verdicts → the body of OpenAI's Decisions."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.apis.decisions.schema import (
    ChoiceAnswer,
    ChoiceProbability,
    ChoiceQuestion,
    CreateDecision,
    DecisionAnswer,
    DecisionBody,
    DecisionQuestion,
    DecisionUsage,
    InputDetails,
    OutputDetails,
    PredicateAnswer,
    PredicateQuestion,
    ScoreAnswer,
    ScoreProbability,
)
from antiphon.apis.questions import diagnostics
from antiphon.core.decision import Verdict, Verdicts
from antiphon.decide.probabilities import choice_confidence, expectation, likeliest, score_confidence


def answer(request: CreateDecision, model: str, verdicts: Verdicts) -> bytes:
    """The body; `model` is the name of the model that has answered."""
    tokens = verdicts.prompt_tokens
    body = DecisionBody(
        model,
        [
            _answer(question, verdict)
            for question, verdict in zip(request.questions, verdicts.verdicts, strict=True)
        ],
        DecisionUsage(tokens, InputDetails(verdicts.cached_tokens), 0, OutputDetails(), tokens),
        diagnostics(verdicts) if request.x_diagnostics else UNSET,
    )
    return msgspec.json.encode(body)


def _answer(question: DecisionQuestion, verdict: Verdict) -> DecisionAnswer:
    truncated: bool | UnsetType = verdict.truncated or UNSET
    probabilities: Sequence[float] = verdict.probabilities
    match question:
        case PredicateQuestion(name=name):
            return PredicateAnswer(name, probabilities[0], truncated)
        case ChoiceQuestion(name=name, choices=choices):
            return ChoiceAnswer(
                name,
                choices[likeliest(probabilities)].value,
                choice_confidence(probabilities),
                [
                    ChoiceProbability(choice.value, probability)
                    for choice, probability in zip(choices, probabilities, strict=True)
                ],
                truncated,
            )
    return ScoreAnswer(
        question.name,
        expectation(probabilities),
        score_confidence(probabilities),
        [
            ScoreProbability(index, level.label, probability)
            for index, (level, probability) in enumerate(zip(question.levels, probabilities, strict=True))
        ],
        truncated,
    )
