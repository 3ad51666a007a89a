"""The answers of OpenAI's Decisions, byte for byte."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.decisions.answer import answer
from antiphon.apis.decisions.schema import CreateDecision
from antiphon.core.decision import Verdict, Verdicts
from tests.apis.decision_requests import OPENAI

VERDICTS = Verdicts(
    (
        Verdict((0.9, 0.1), 0.75, label_is_likeliest=True, orders=2, temperature=1.5),
        Verdict((0.2, 0.3, 0.5), 0.5, label_is_likeliest=False),
        Verdict((0.7, 0.3), 0.25, label_is_likeliest=True, truncated=True),
    ),
    prompt_tokens=131,
    cached_tokens=100,
    reads=4,
    prompt_version="1-a",
    calibration="june",
)
USAGE = {
    "input_tokens": 131,
    "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 131,
}


def body(verdicts: Verdicts = VERDICTS, **fields: Any) -> Any:
    request = msgspec.convert({**OPENAI, **fields}, CreateDecision)
    return msgspec.json.decode(answer(request, "real", verdicts))


def test_the_whole_body() -> None:
    """The vectors of confidence are those of Jev."""
    assert body() == {
        "model": "real",
        "answers": [
            {
                "type": "choice",
                "name": "route",
                "choice": "billing",
                "confidence": pytest.approx(0.8),
                "probabilities": [
                    {"value": "billing", "probability": 0.9},
                    {"value": "shipping", "probability": 0.1},
                ],
            },
            {
                "type": "score",
                "name": "urgency",
                "score": pytest.approx(1.3),
                "confidence": 0.0,
                "probabilities": [
                    {"value": 0, "label": "can wait", "probability": 0.2},
                    {"value": 1, "label": "today", "probability": 0.3},
                    {"value": 2, "label": "now", "probability": 0.5},
                ],
            },
            {"type": "predicate", "name": None, "probability": 0.7, "x_truncated": True},
        ],
        "usage": USAGE,
    }


def test_diagnostics_are_there_if_they_are_asked_for() -> None:
    first, second, third = body(x_diagnostics=True)["x_diagnostics"]
    assert first == {
        "label_mass": 0.75,
        "argmax_is_label": True,
        "orders": 2,
        "calibration": {"name": "june", "temperature": 1.5},
        "prompt_version": "1-a",
        "truncated": False,
    }
    assert (second["argmax_is_label"], third["truncated"]) == (False, True)


def test_values_keep_their_types() -> None:
    question = {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "false"}]}
    verdicts = Verdicts((Verdict((0.4, 0.6), 1, label_is_likeliest=True),), 1)
    [shown] = body(verdicts, questions=[question])["answers"]
    assert shown["choice"] == "false"
    assert [each["value"] for each in shown["probabilities"]] == [True, "false"]


def test_the_first_of_several_likeliest() -> None:
    question = {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "b"}]}
    verdicts = Verdicts((Verdict((0.5, 0.5), 1, label_is_likeliest=True),), 1)
    [shown] = body(verdicts, questions=[question])["answers"]
    assert (shown["choice"], shown["confidence"]) == ("a", 0)


@given(st.lists(st.integers(1, 100), min_size=2, max_size=10))
def test_figures_follow_from_the_probabilities_that_are_shown(weights: list[int]) -> None:
    probabilities = tuple(weight / sum(weights) for weight in weights)
    levels = [{"label": str(index)} for index in range(len(weights))]
    choices = [{"value": str(index)} for index in range(len(weights))]
    questions = [
        {"type": "score", "instructions": "?", "levels": levels},
        {"type": "choice", "instructions": "?", "choices": choices},
    ]
    verdict = Verdict(probabilities, 1, label_is_likeliest=True)
    score, choice = body(Verdicts((verdict, verdict), 1), questions=questions)["answers"]
    expected = sum(each["value"] * each["probability"] for each in score["probabilities"])
    assert score["score"] == pytest.approx(expected)
    assert 0 <= score["confidence"] <= 1
    assert choice["choice"] == str(weights.index(max(weights)))
    count = len(weights)
    assert choice["confidence"] == pytest.approx((count * max(probabilities) - 1) / (count - 1))
