"""What a check is: a row with its source, a function that plays it, and the outcomes that it may have.

A check raises `Failed` where the server does not do what the source says, `NotOffered` where it has no such
route or refuses an optional feature, and `Inconclusive` where the model has not done what the check needs,
such as calling a tool. What is raised has the evidence. A check that returns has passed.
One for which no time was left is not done.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NoReturn

from jsonschema_rs import Draft202012Validator
from msgspec import Struct

from antiphon.check.client import Answer, Server
from antiphon.core.untrusted_json import UNREADABLE, decode_untrusted

MAX_EVIDENCE = 300
"""Characters of evidence."""

MISSING_ROUTE = frozenset({404, 405, 501})
REFUSED = frozenset({400, 403, 404, 405, 415, 422, 501})
"""Statuses of a server that does not take an optional feature."""


class Outcome(StrEnum):
    """How a check may end."""

    PASSED = "pass"
    FAILED = "fail"
    NOT_OFFERED = "not offered"
    INCONCLUSIVE = "inconclusive"
    NOT_DONE = "not done"


class Unpassed(Exception):
    """A check has not passed; `evidence` says what was seen."""

    outcome: Outcome

    def __init__(self, evidence: str) -> None:
        super().__init__(evidence)
        self.evidence = evidence


class Failed(Unpassed):
    """The server does not do what the source says."""

    outcome = Outcome.FAILED


class NotOffered(Unpassed):
    """The server has no such route, or refuses an optional feature."""

    outcome = Outcome.NOT_OFFERED


class Inconclusive(Unpassed):
    """The model has not done what the check needs, so that nothing is known about the server."""

    outcome = Outcome.INCONCLUSIVE


Play = Callable[[Server], Awaitable[None]]


class Check(Struct, frozen=True):
    """A check: `id` begins with the name of its `api`; `means` says what a failure means for clients."""

    id: str
    api: str
    title: str
    means: str
    source: str
    play: Play


class Table:
    """The checks of one API, in the order in which they are played."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.checks: list[Check] = []

    def check(self, name: str, means: str, source: str) -> Callable[[Play], Play]:
        """Add the function as a check. Its docstring is the title."""

        def add(play: Play) -> Play:
            title = (play.__doc__ or "").rstrip(".")
            self.checks.append(Check(f"{self.api}.{name}", self.api, title, means, source, play))
            return play

        return add


def fail(evidence: str) -> NoReturn:
    """The server does not do what the source says."""
    raise Failed(evidence)


def expect(holds: object, evidence: str) -> None:
    """Fail with this evidence, unless it holds."""
    if not holds:
        fail(evidence)


def answered(answer: Answer, *, optional: bool = False) -> Any:
    """The JSON of a successful answer.

    A missing route is not offered; with `optional`, neither is a feature that the server refuses.
    """
    if answer.status in MISSING_ROUTE or (optional and answer.status in REFUSED):
        raise NotOffered(f"{answer.status}: {answer.text()}")
    expect(answer.status == 200, f"status {answer.status}: {answer.text()}")
    return json_of(answer)


def json_of(answer: Answer) -> Any:
    """The JSON object of an answer."""
    return object_of(answer.body, "the body")


def object_of(text: bytes | str, what: str) -> Any:
    """The JSON object that a text is."""
    try:
        value = decode_untrusted(text.encode() if isinstance(text, str) else text)
    except UNREADABLE as error:
        fail(f"{what} is not JSON ({error}): {shown(text)}")
    expect(isinstance(value, dict), f"{what} is not an object: {shown(text)}")
    return value


def conforms(value: object, schema: Mapping[str, Any], what: str = "the body") -> None:
    """Fail with the first place that the schema does not allow."""
    for error in Draft202012Validator(dict(schema)).iter_errors(value):
        place = ".".join(str(part) for part in error.instance_path)
        fail(f"{what}{f' at {place}' if place else ''}: {error.message}")


def required(values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of an object that has all these fields."""
    return {"type": "object", "required": list(values), "properties": dict(values), **more}


def error_shape(answer: Answer, schema: Mapping[str, Any], statuses: Sequence[int] = range(400, 500)) -> Any:
    """The JSON of an answer that has to be an error with one of these statuses, as the schema says."""
    if answer.status in MISSING_ROUTE and 404 not in statuses:
        raise NotOffered(f"{answer.status}: {answer.text()}")
    expect(answer.status in statuses, f"status {answer.status} for a request that is wrong: {answer.text()}")
    body = json_of(answer)
    conforms(body, schema)
    return body


def shown(value: object) -> str:
    """A value of the server, as evidence has it: one short line without control characters."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_EVIDENCE]).split())
    return line if len(line) <= MAX_EVIDENCE else line[: MAX_EVIDENCE - 1] + "…"


STRING = {"type": "string"}
NAME = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number"}
OBJECT = {"type": "object"}
NULLABLE_STRING = {"type": ["string", "null"]}
PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}


def constant(value: object) -> dict[str, Any]:
    """The schema of one value."""
    return {"const": value}


def array(items: Mapping[str, Any], least: int = 0) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": dict(items), "minItems": least}
