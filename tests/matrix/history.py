"""The conversations of the matrix, in the words of no API."""

from typing import Any

from msgspec import Struct

from tests.matrix.case import NOW, TIME, WEATHER, Case


class Turn(Struct, frozen=True):
    """Calls of the model, then results as (id of the call, text), then what the user says."""

    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    text: str = ""


ASKED = Turn(text="What is it like in Rome?")
CALLS = (
    ("call_one", WEATHER, {"city": "Rome"}),
    ("call_two", TIME, {"zone": "CET"}),
    ("call_three", NOW, {}),
)
RESULTS = (("call_one", "first result"), ("call_two", "second result"), ("call_three", "third result"))
LAST = Turn(text="And now?")

_HISTORIES = {
    "plain": (ASKED,),
    "results": (ASKED, Turn(CALLS[:1], RESULTS[:1]), LAST),
    "parallel results": (ASKED, Turn(CALLS, (RESULTS[2], RESULTS[0], RESULTS[1]))),
    "results without calls": (Turn((), RESULTS[:1], "What was that?"),),
    "calls without results": (ASKED, Turn(CALLS, RESULTS[1:2]), LAST),
}


def history_of(case: Case) -> tuple[Turn, ...]:
    """The conversation of a case."""
    return _HISTORIES[case.history]
