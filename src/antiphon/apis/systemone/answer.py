"""Verdicts → the body of System One."""

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.apis.questions import diagnostics
from antiphon.apis.systemone.accept import question_at
from antiphon.apis.systemone.schema import (
    LevelAnswer,
    LevelQuestion,
    NoulAnswer,
    OptionAnswer,
    OptionQuestion,
    SystemOneAnswer,
    SystemOneAnswers,
    SystemOneQuestion,
    SystemOneRequest,
    SystemOneUsage,
)
from antiphon.core.decision import Verdict, Verdicts
from antiphon.decide.probabilities import choice_confidence, expectation, likeliest, score_confidence


def answer(request: SystemOneRequest, model: str, verdicts: Verdicts) -> bytes:
    """The body; `model` is the name of the model that has answered."""
    questions = {id_: question_at(id_, given) for id_, given in request.questions.items()}
    body = SystemOneAnswers(
        model,
        {
            id_: _answer(question, verdict)
            for (id_, question), verdict in zip(questions.items(), verdicts.verdicts, strict=True)
        },
        SystemOneUsage(verdicts.prompt_tokens),
        dict(zip(questions, diagnostics(verdicts), strict=True)) if request.x_diagnostics else UNSET,
    )
    return msgspec.json.encode(body)


def _answer(question: SystemOneQuestion, verdict: Verdict) -> SystemOneAnswer:
    truncated: bool | UnsetType = verdict.truncated or UNSET
    probabilities = verdict.probabilities
    match question:
        case OptionQuestion(criteria=criteria):
            names = [*criteria]
            return OptionAnswer(
                names[likeliest(probabilities)],
                choice_confidence(probabilities),
                dict(zip(names, probabilities, strict=True)),
                truncated,
            )
        case LevelQuestion(criteria=levels):
            numbers = [*map(str, range(len(levels)))]
            return LevelAnswer(
                expectation(probabilities),
                score_confidence(probabilities),
                dict(zip(numbers, levels, strict=True)),
                dict(zip(numbers, probabilities, strict=True)),
                truncated,
            )
    return NoulAnswer(probabilities[0], truncated)
