"""Errors in the forms of System One's clients: `error` as llama-server has it, and `detail` as Jev has it.

A request that is wrong is a 422, whose `detail` lists the places. Other statuses are those of Antiphon, but
for requests that are too large as a whole (413), and images for a model without eyes (501).
"""

import re
from collections.abc import Mapping

import msgspec

from antiphon.apis.systemone.schema import ErrorDetail, Problem, SystemOneFailure, SystemOneFailureBody
from antiphon.core.errors import AntiphonError, MalformedBodyError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED

INVALID, TOO_LARGE, UNPROCESSABLE, NOT_SUPPORTED = 400, 413, 422, 501
_CONTEXT = "context_length_exceeded"
_TYPES: Mapping[int, str] = {
    TOO_LARGE: "request_too_large_error",
    UNPROCESSABLE: "unprocessable_entity_error",
    NOT_SUPPORTED: "not_supported_error",
}
"""Status → type, where it is not Antiphon's."""
_WHOLE = (None, "questions")
"""The parameters of limits that a request exceeds as a whole."""
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def status(error: AntiphonError) -> int:
    """The HTTP status of an error."""
    if not isinstance(error, RequestError) or error.status != INVALID:
        return error.status
    if isinstance(error, MalformedBodyError) or error.code == _CONTEXT:
        return INVALID
    if error.code == LIMIT_EXCEEDED and error.param in _WHOLE:
        return TOO_LARGE
    if error.code == "unsupported_media" and not (error.param or "").startswith("videos"):
        return NOT_SUPPORTED
    return UNPROCESSABLE


def encode_error(error: AntiphonError) -> bytes:
    """The body of an error."""
    code = status(error)
    type_ = "exceed_context_size_error" if error.code == _CONTEXT else _TYPES.get(code, error.type)
    listed = code == UNPROCESSABLE or isinstance(error, MalformedBodyError)
    detail = [_problem(error)] if listed else ErrorDetail(type_, error.message)
    return msgspec.json.encode(SystemOneFailureBody(SystemOneFailure(error.message, type_, code), detail))


def _problem(error: AntiphonError) -> Problem:
    """The place of a wrong value, as a path from the body on: names, and numbers in lists."""
    kind = "missing" if error.code == "missing_required_parameter" else "value_error"
    if isinstance(error, MalformedBodyError):
        kind = "json_invalid"
    steps = [int(number) if number else name for number, name in _STEP.findall(error.param or "")]
    return Problem(["body", *steps], error.message, kind)
