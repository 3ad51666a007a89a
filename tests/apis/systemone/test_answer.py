"""The answers of System One, and its errors, byte for byte."""

from typing import Any

import msgspec
import pytest

from antiphon.apis.systemone.answer import answer
from antiphon.apis.systemone.errors import encode_error, status
from antiphon.apis.systemone.schema import SystemOneRequest
from antiphon.core.decision import Verdict, Verdicts
from antiphon.core.errors import (
    AntiphonError,
    AuthenticationError,
    BodyTooLargeError,
    EngineBusyError,
    EngineError,
    EngineNotReadyError,
    MalformedBodyError,
    NotFoundError,
    RequestError,
)
from tests.apis.decision_requests import SYSTEMONE
from tests.apis.decisions.test_answer import VERDICTS


def body(verdicts: Verdicts = VERDICTS, **fields: Any) -> Any:
    request = msgspec.convert({**SYSTEMONE, **fields}, SystemOneRequest)
    return msgspec.json.decode(answer(request, "real", verdicts))


def test_the_whole_body() -> None:
    shown = body()
    assert shown == {
        "model": "real",
        "answers": {
            "route": {
                "type": "choice",
                "choice": "billing",
                "confidence": pytest.approx(0.8),
                "probabilities": {"billing": 0.9, "shipping": 0.1},
            },
            "urgency": {
                "type": "score",
                "score": pytest.approx(1.3),
                "confidence": 0.0,
                "legend": {"0": "can wait", "1": "today", "2": "now"},
                "probabilities": {"0": 0.2, "1": 0.3, "2": 0.5},
            },
            "angry": {"type": "noul", "noul": 0.7, "x_truncated": True},
        },
        "usage": {"input_tokens": 131, "output_tokens": 0},
    }
    assert [*shown["answers"]] == [*SYSTEMONE["questions"]]


def test_the_likeliest_is_chosen_and_the_first_of_several() -> None:
    criteria = dict.fromkeys("abc")
    question = {"type": "choice", "instructions": "?", "criteria": criteria}
    for probabilities, expected in (((0.2, 0.5, 0.3), "b"), ((0.2, 0.4, 0.4), "b"), ((0.1, 0.1, 0.8), "c")):
        verdicts = Verdicts((Verdict(probabilities, 1, label_is_likeliest=True),), 1)
        assert body(verdicts, questions={"q": question})["answers"]["q"]["choice"] == expected


def test_diagnostics_by_the_ids_of_questions() -> None:
    shown = body(x_diagnostics=True)["x_diagnostics"]
    assert [*shown] == [*SYSTEMONE["questions"]]
    assert shown["urgency"] == {
        "label_mass": 0.5,
        "argmax_is_label": False,
        "orders": 1,
        "calibration": {"name": "june", "temperature": 1.0},
        "prompt_version": "1-a",
        "truncated": False,
    }


def test_a_legend_is_as_the_request_has_it() -> None:
    levels = [{"label": "calm"}, ["angry", 1], "é"]
    question = {"type": "score", "instructions": "?", "criteria": levels}
    verdicts = Verdicts((Verdict((0.2, 0.3, 0.5), 1, label_is_likeliest=True),), 1)
    assert body(verdicts, questions={"q": question})["answers"]["q"]["legend"] == dict(
        zip("012", levels, strict=True)
    )


@pytest.mark.parametrize(
    ("error", "expected", "type_"),
    [
        (MalformedBodyError(), 400, "invalid_request_error"),
        (
            RequestError("Too long.", param="state", code="context_length_exceeded"),
            400,
            "exceed_context_size_error",
        ),
        (AuthenticationError(), 401, "authentication_error"),
        (NotFoundError(), 404, "not_found_error"),
        (BodyTooLargeError(code="limit_exceeded"), 413, "request_too_large_error"),
        (RequestError("No eyes.", param="assets.a", code="unsupported_media"), 501, "not_supported_error"),
        (EngineBusyError(), 429, "rate_limit_error"),
        (EngineNotReadyError(), 503, "server_error"),
        (EngineError(), 500, "server_error"),
    ],
)
def test_errors(error: AntiphonError, expected: int, type_: str) -> None:
    shown = msgspec.json.decode(encode_error(error))
    assert status(error) == expected
    assert shown["error"] == {"message": error.message, "type": type_, "code": expected}
    if isinstance(error, MalformedBodyError):
        assert shown["detail"] == [{"loc": ["body"], "msg": error.message, "type": "json_invalid"}]
    else:
        assert shown["detail"] == {"error_type": type_, "message": error.message}


def test_videos_for_a_model_without_eyes_are_wrong() -> None:
    assert status(RequestError("No.", param="videos[0]", code="unsupported_media")) == 422
