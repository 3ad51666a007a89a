"""What the matrix combines: the parameters of a case, with their values, and the cases that cover them.

Every case is played in every API, streamed and whole, so these two are no parameters here. The cases of a
dialect cover each pair of values; so all of them together cover each triple of a dialect and two values.

To add a kind of demand, history or setting: a parameter here, how each API asks for it in `apis.py`, and what
must hold for it in `laws.py`, proven by a fault in `test_planted_faults.py`. Dialects join by themselves.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

import covertable
from covertable import criteria
from msgspec import Struct
from msgspec.structs import asdict

from antiphon.dialects.registry import DIALECTS

Json = Any
"""What a body holds."""

WEATHER, TIME, TYPED, NOW, RUN = "get_weather", "get_time", "typed", "now", "run"

FORMAT_SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"enum": ["yes", "no"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["answer"],
    "additionalProperties": False,
}
REGEX = "(yes|no), [0-9]{2}"
GRAMMAR = 'root ::= ("yes" | "no") ", " [0-9] [0-9]'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<verdict>",
        "content": {"type": "json_schema", "json_schema": FORMAT_SCHEMA},
        "end": "</verdict>",
    },
}
INPUT = "[a-z]{1,9}"
"""The input of a custom tool with a regular expression."""

PARAMETERS: Mapping[str, tuple[Json, ...]] = {
    "choice": (
        *("required", "named", "absent", "auto", "none"),
        *("allowed auto", "allowed required", "no tools"),
    ),
    "obeys": (True, False),  # the model writes what its constraint lets through, or this:
    "text": (
        *("single", "parallel", "text", "text_before", "reasoning_then_call"),
        *("unknown_function", "malformed"),
        *("stray text", "doubled marker", "missing marker"),  # two calls with such a slip
    ),
    "engine": ("enforces", "checks"),
    "parallel": (None, False, True),
    "strict": (None, True, False),
    "format": (None, "schema", "object", "regex", "grammar", "structural tag"),
    "reasoning": (None, True, False),
    "effort": (None, "none", "low", "high", "xhigh"),
    "n": (1, 2),
    "logprobs": (None, 0, 2),
    "stop": (None, "☃☃", "e"),
    "limit": (None, 4, 40),
    "history": ("plain", "results", "parallel results", "results without calls", "calls without results"),
    "custom": (None, "text", "regex"),
    "split": (None, "chars", "whole"),
    "moderated": (None, "score", "block"),  # by a guard that finds no harm
}

TRIPLES = [{"fields": ["choice", "obeys", "format"], "strength": 3}]
"""Parameters whose triples are covered, too."""


class Case(Struct, frozen=True):
    """One combination, for one dialect. The fields are those of `PARAMETERS`."""

    dialect: str
    choice: str = "absent"
    obeys: bool = True
    text: str = "text"
    engine: str = "enforces"
    parallel: bool | None = None
    strict: bool | None = None
    format: str | None = None
    reasoning: bool | None = None
    effort: str | None = None
    n: int = 1
    logprobs: int | None = None
    stop: str | None = None
    limit: int | None = None
    history: str = "plain"
    custom: str | None = None
    split: str | None = None
    moderated: str | None = None

    def __str__(self) -> str:
        """How it is written, so that it can be tried alone: see `play.faults_of`."""
        plain = asdict(Case(self.dialect))
        given = (f"{name}={value!r}" for name, value in asdict(self).items() if value != plain[name])
        return f"Case({', '.join((repr(self.dialect), *given))})"

    @property
    def offers(self) -> bool:
        """The request has tools."""
        return self.choice != "no tools"

    @property
    def names(self) -> frozenset[str] | None:
        """The only tools that may be called; None for all."""
        if self.choice in ("none", "no tools"):
            return frozenset()
        if self.choice == "named":
            return frozenset({WEATHER})
        return frozenset({WEATHER, TIME}) if self.choice.startswith("allowed") else None

    @property
    def must(self) -> bool:
        """A tool has to be called."""
        return self.choice in ("required", "named", "allowed required")

    @property
    def most(self) -> int:
        """The most calls of an answer."""
        if self.names == frozenset():
            return 0
        return 1 if self.parallel is False or self.choice == "named" else 100

    @property
    def cut(self) -> bool:
        """The answer may end before the model does."""
        return self.limit is not None or self.stop == "e"

    @property
    def demands(self) -> bool:
        """The answer has to have a form, or a call."""
        return self.must or (self.format is not None)


@cache
def _combinations() -> list[dict[str, Json]]:
    """Combinations that have each pair of values."""
    places = {name: tuple(range(len(values))) for name, values in PARAMETERS.items()}
    rows = covertable.make(places, criterion=criteria.simple, sub_models=TRIPLES)
    return [{name: PARAMETERS[name][row[name]] for name in PARAMETERS} for row in rows]


def cases(dialect: str, most: int | None = None) -> list[Case]:
    """All cases of a dialect, or as many; which ones depends on its name."""
    every = [Case(dialect, **row) for row in _combinations()]
    if most is None:
        return every

    def rank(case: Case) -> tuple[bool, bytes]:
        """A demand on calls that the engine enforces first: each dialect is tried with one."""
        forced = case.must and case.engine == "enforces" and case.obeys and not case.cut
        return not forced, blake2b(str(case).encode()).digest()

    first, *others = sorted(every, key=rank)
    return [first, *sorted(others, key=lambda case: rank(case)[1])][:most]


CUT = tuple(
    {"limit": 40, "split": "chars", **demand}
    for demand in (
        {"choice": "required"},
        {"choice": "named", "strict": True},
        {"choice": "auto", "strict": True, "text": "single"},
        {"format": "schema", "n": 2, "limit": 25},
        {"format": "object", "limit": 20, "engine": "checks"},
        {"format": "structural tag", "logprobs": 2},
    )
)
"""Demands that answers are cut in, which are closed then."""


def cut_cases(dialect: str, most: int | None = None) -> list[Case]:
    """The cases of a dialect whose answers are cut, or as many; which ones depends on its name."""
    every = [Case(dialect, **given) for given in CUT]
    return sorted(every, key=lambda case: blake2b(str(case).encode()).digest())[:most]


NAMES = [dialect.names[0] for dialect in DIALECTS]
