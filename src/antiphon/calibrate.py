"""`antiphon calibrate`: fits the temperatures of a model's decisions on cases whose answers are known.

Each line of the file of cases is a question about a text, and its answer:

    {"input": "Charged twice.", "type": "choice", "instructions": "Which team?",
     "choices": ["billing", {"value": "shipping", "description": "parcels"}], "answer": "billing"}
    {"input": "Charged twice.", "type": "score", "instructions": "How urgent?",
     "levels": ["can wait", "today"], "answer": 1}
    {"input": "Charged twice.", "type": "predicate", "instructions": "Is it about money?", "answer": true}
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec import Struct

from antiphon.compose import Parts
from antiphon.config import Settings
from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import AntiphonError, EngineError
from antiphon.core.items import Message, Role, TextPart
from antiphon.decide.calibration import (
    Calibration,
    Prediction,
    accuracy,
    calibration_error,
    calibration_text,
    fit,
    log_loss,
    plot,
    reliability,
    svg,
)
from antiphon.decide.reads import verdict_of
from antiphon.run.decisions import Answers
from antiphon.run.token_model import TokenModel

FEW = 50
"""With fewer cases than this, the report warns."""


class Choice(Struct, frozen=True, forbid_unknown_fields=True):
    """An option of a choice, or a level of a score."""

    value: str
    description: str = ""


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file: see the module."""

    input: str
    type: QuestionKind
    answer: str | int | bool
    instructions: str = ""
    choices: tuple[str | Choice, ...] = ()
    levels: tuple[str | Choice, ...] = ()

    def decision(self, source: str) -> tuple[Decision, int]:
        """The decision, and the index of the right option. Raises AntiphonError, which names the source."""
        options = self._options()
        right = self._right(options)
        if right is None or len(options) < 2:
            message = f"{source}: the answer must be one of two or more choices, the index of a level, or "
            raise AntiphonError(message + "true or false.")
        instructions = (TextPart(self.instructions),) if self.instructions else ()
        question = Question(self.type, instructions, options, source)
        items = (Message(Role.USER, (TextPart(self.input),)),)
        return Decision("", items, (question,), parameters={"conversation": source}), right

    def _options(self) -> tuple[Option, ...]:
        if self.type is QuestionKind.PREDICATE:
            return Option(""), Option("")
        given = self.choices if self.type is QuestionKind.CHOICE else self.levels
        return tuple(
            Option(one) if isinstance(one, str) else Option(one.value, one.description) for one in given
        )

    def _right(self, options: Sequence[Option]) -> int | None:
        match self.type, self.answer:
            case QuestionKind.PREDICATE, bool(answer):
                return int(not answer)
            case QuestionKind.SCORE, int(answer) if 0 <= answer < len(options):
                return answer
            case QuestionKind.CHOICE, str(answer):
                names = [option.name for option in options]
                return names.index(answer) if answer in names else None
        return None


def read_cases(path: Path) -> list[tuple[Decision, int]]:
    """The decisions in a file, each with the index of the right option. Raises AntiphonError."""
    cases = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise AntiphonError(f"Cannot read {path}: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            source = f"{path}, line {number}"
            try:
                case = msgspec.json.decode(line, type=Case)
            except msgspec.DecodeError as error:
                raise AntiphonError(f"{source}: {error}.") from error
            cases.append(case.decision(source))
    if not cases:
        raise AntiphonError(f"There are no cases in {path}.")
    return cases


def calibrate(cases: Path, file: Path, settings: Settings, out: TextIO) -> None:
    """Fit the model of the settings on the cases; the calibration goes to the file, the figures to `out`.

    A plot is written beside the file. Raises AntiphonError.
    """
    decisions = read_cases(cases)
    calibration, results = asyncio.run(_fitted(decisions, file.name, settings))
    for kind, answered in results.items():
        before = _predictions(answered, 1.0)
        after = _predictions(answered, calibration.temperatures[kind])
        for line in _report(kind, calibration.temperatures[kind], before, after):
            print(line, file=out)
        plotted = svg(reliability(before), reliability(after), f"{calibration.model}: {kind}")
        file.with_name(f"{file.stem}-{kind}.svg").write_text(plotted, encoding="utf-8")
    file.write_text(calibration_text(calibration), encoding="utf-8")


Answered = list[tuple[Answers, int]]
"""What was read of cases, each with the index of the right option."""


async def _fitted(
    decisions: Sequence[tuple[Decision, int]], name: str, settings: Settings
) -> tuple[Calibration, dict[QuestionKind, Answered]]:
    """The calibration, and what was read of all cases by their kind."""
    first = with_changes(settings.served[0], calibration=None)
    served = Parts(with_changes(settings, models=(first,))).models.served[0]
    try:
        model = await served.load()
        if not isinstance(model, TokenModel):
            message = "Only a model whose prompts are made here can be calibrated. Name another."
            raise EngineError(message)
        results: dict[QuestionKind, Answered] = {}
        for decision, right in decisions:
            (answers,) = (await model.decider.read(decision)).answers
            results.setdefault(answers.question.kind, []).append((answers, right))
        calibration = Calibration(
            name=name,
            temperatures={kind: _temperature(answered) for kind, answered in results.items()},
            model=model.card.name,
            known_as=model.card.known_as,
            prompt_version=await model.decider.version(),
            prefills=await model.decider.prefills(),
            cases={kind: len(answered) for kind, answered in results.items()},
        )
    finally:
        await served.stop()
    return calibration, results


def _temperature(answered: Answered) -> float:
    return fit(lambda temperature: log_loss(_predictions(answered, temperature)))


def _predictions(answered: Answered, temperature: float) -> list[Prediction]:
    return [
        Prediction(
            verdict_of(
                answers.reads, answers.readings, len(answers.question.options), temperature
            ).probabilities,
            right,
        )
        for answers, right in answered
    ]


def _report(
    kind: QuestionKind, temperature: float, before: Sequence[Prediction], after: Sequence[Prediction]
) -> Iterator[str]:
    yield f"{kind}: {len(before)} cases, accuracy {accuracy(before):.3f}, temperature {temperature:.3f}"
    yield f"  log loss           {log_loss(before):.3f} before, {log_loss(after):.3f} after"
    yield f"  calibration error  {calibration_error(before):.3f} before, {calibration_error(after):.3f} after"
    if len(before) < FEW:
        yield f"  These are few cases: with fewer than {FEW}, a temperature is chance."
    yield ""
    yield from plot(reliability(after))
    yield ""
