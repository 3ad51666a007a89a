"""Calibration: the fit, the figures, the files."""

import math
from random import Random

import msgspec
import pytest

from antiphon.core.decision import QuestionKind
from antiphon.core.errors import EngineError
from antiphon.decide.calibration import (
    Calibration,
    Prediction,
    accuracy,
    calibration_error,
    calibration_text,
    fit,
    log_loss,
    plot,
    read_calibration,
    reliability,
    svg,
)
from antiphon.decide.probabilities import softmax


@pytest.mark.parametrize("true", [0.3, 1.0, 2.5])
def test_the_temperature_of_a_model_is_found_again(true):
    """Answers are drawn from probabilities at one temperature: that one fits."""
    rng = Random(1)
    cases = []
    for _ in range(4000):
        logits = [rng.gauss(0, 2) for _ in range(4)]
        right = rng.choices(range(4), softmax(logits, true))[0]
        cases.append((logits, right))

    def predictions(temperature):
        return [Prediction(softmax(logits, temperature), right) for logits, right in cases]

    found = fit(lambda temperature: log_loss(predictions(temperature)))
    assert found == pytest.approx(true, rel=0.08)
    assert log_loss(predictions(found)) <= log_loss(predictions(1.0)) + 1e-9
    assert calibration_error(predictions(found)) < 0.03
    if true != 1:
        assert calibration_error(predictions(found)) < calibration_error(predictions(1.0))


def test_figures():
    predictions = [Prediction((0.9, 0.1), 0), Prediction((0.9, 0.1), 1), Prediction((0.4, 0.6), 1)]
    assert accuracy(predictions) == pytest.approx(2 / 3)
    assert log_loss(predictions) == pytest.approx(-math.log(0.9 * 0.1 * 0.6) / 3)
    assert calibration_error(predictions) == pytest.approx((2 * 0.4 + 0.4) / 3)
    bins = reliability(predictions)
    assert [bin_.count for bin_ in bins] == [0] * 6 + [1, 0, 0, 2]
    assert log_loss([Prediction((1.0, 0.0), 1)]) < 30  # a certain mistake is not infinite


def test_plots():
    bins = reliability([Prediction((0.9, 0.1), 0), Prediction((0.9, 0.1), 1)])
    head, line = plot(bins)
    assert "cases" in head
    assert line.endswith(" 0.50")
    assert line.split()[3] == "2"
    assert line.count("█") == 20
    drawn = svg(bins, bins, "choice")
    assert drawn.startswith("<svg ")
    assert drawn.count("<circle") == 2


FULL = Calibration(
    "c.json",
    {QuestionKind.CHOICE: 1.5},
    model="m",
    known_as=("M",),
    prompt_version="1-abc",
    prefills={QuestionKind.CHOICE: "("},
    cases={QuestionKind.CHOICE: 12},
)


def test_a_file_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(calibration_text(FULL))
    assert read_calibration(file) == FULL


def test_it_is_refused_for_others():
    FULL.check("m", ["M"])
    FULL.check_version("1-abc")
    with pytest.raises(EngineError, match="is for the model m, and this is other"):
        FULL.check("other", ["M"])
    with pytest.raises(EngineError, match="another file of the model m: M"):
        FULL.check("m", ["M", "N"])
    with pytest.raises(EngineError, match="prompts of the version 1-abc, and those of this model"):
        FULL.check_version("2-abc")


def test_the_file_of_transformers_is_read(tmp_path):
    file = tmp_path / "decision.json"
    content = {"labels": {"noul": ["Yes", "No"]}, "temperature": {"noul": 1.25, "choice": 2, "box": 3}}
    file.write_bytes(msgspec.json.encode(content))
    calibration = read_calibration(file)
    assert calibration.temperatures == {QuestionKind.PREDICATE: 1.25, QuestionKind.CHOICE: 2}
    calibration.check("any", [])
    calibration.check_version("any")


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "Cannot read"), ('{"name": "c", "temperatures": {"choice": 0}}', "temperature 0 for choice")],
)
def test_a_file_that_is_broken_is_refused(tmp_path, content, why):
    file = tmp_path / "c.json"
    file.write_text(content)
    with pytest.raises(EngineError, match=why):
        read_calibration(file)
    with pytest.raises(EngineError, match="No such file"):
        read_calibration(tmp_path / "none.json")
