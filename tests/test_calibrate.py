"""`antiphon calibrate`, from the cases to the server that uses the file."""

import json
import math
from pathlib import Path

import pytest

from antiphon.cli import main
from antiphon.core.decision import QuestionKind
from antiphon.decide.calibration import read_calibration

CHOICE = {"type": "choice", "instructions": "Which team?", "choices": ["billing", {"value": "shipping"}]}
SCORE = {"type": "score", "instructions": "How urgent?", "levels": ["low", "high"]}
PREDICATE = {"type": "predicate", "instructions": "Is it about money?"}


def written(folder: Path, *cases: object) -> Path:
    file = folder / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, cases)) + "\n\n")
    return file


def scripted(folder: Path) -> list[str]:
    """Options of a model that is sure of yes, and rather of A and 0."""
    file = folder / "script.jsonl"
    scores = {"yes": 0.6, "no": 0.001, "A": 0.15, "B": 0.05, "0": 0.1, "1": 0.05}
    line = {"output": "yes", "next": {text: math.log(score) for text, score in scores.items()}}
    file.write_text(json.dumps(line))
    return ["--engine", "scripted", "--script", str(file), "--dialect", "hermes", "--decision-prefill", "("]


def test_temperatures_are_fitted(tmp_path, capsys):
    cases = written(
        tmp_path,
        *({"input": "Paid.", **PREDICATE, "answer": right} for right in [True] * 3 + [False]),
        {"input": "Paid twice.", **CHOICE, "answer": "billing"},
        {"input": "Paid twice.", **SCORE, "answer": 0},
    )
    file = tmp_path / "mine.json"
    assert main(["calibrate", str(cases), str(file), *scripted(tmp_path)]) == 0
    calibration = read_calibration(file)
    # The temperature at which yes has the probability 3/4.
    exact = math.log(0.6 / 0.001) / math.log(3)
    assert calibration.temperatures[QuestionKind.PREDICATE] == pytest.approx(exact, rel=1e-4)
    assert (calibration.name, calibration.model, calibration.cases[QuestionKind.PREDICATE]) == (
        "mine.json",
        "scripted",
        4,
    )
    assert dict.fromkeys(calibration.prefills.values()) == {"(": None}
    out = capsys.readouterr().out
    assert "predicate: 4 cases, accuracy 0.750, temperature 5.823" in out
    assert "calibration error  0.248 before, 0.000 after" in out
    assert "few cases" in out
    assert {plot.name for plot in tmp_path.glob("*.svg")} == {
        "mine-choice.svg",
        "mine-score.svg",
        "mine-predicate.svg",
    }


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"input": "a", **CHOICE, "answer": "sales"}, "line 1: the answer must be"),
        ({"input": "a", **CHOICE, "answer": 1}, "the answer must be"),
        ({"input": "a", **SCORE, "answer": 2}, "the answer must be"),
        ({"input": "a", **PREDICATE, "answer": 1}, "the answer must be"),
        ({"input": "a", "type": "box", "answer": 1}, "line 1: Invalid enum value 'box'"),
        ({"input": "a", **PREDICATE, "answer": True, "colour": 1}, "unknown field `colour`"),
    ],
)
def test_cases_that_are_wrong_are_named(tmp_path, capsys, case, why):
    cases = written(tmp_path, case)
    assert main(["calibrate", str(cases), str(tmp_path / "c.json"), *scripted(tmp_path)]) == 1
    assert why in capsys.readouterr().err


def test_without_cases_there_is_nothing_to_fit(tmp_path, capsys):
    for cases, why in ((written(tmp_path), "no cases in"), (tmp_path / "none", "No such file")):
        assert main(["calibrate", str(cases), str(tmp_path / "c.json"), *scripted(tmp_path)]) == 1
        assert why in capsys.readouterr().err
