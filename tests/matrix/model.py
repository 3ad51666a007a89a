"""The models of the matrix: a scripted engine that writes what its constraint lets through.

So what the server asks an engine to enforce is what the model does, for every dialect and demand. An engine
that enforces nothing is played the text that one that enforces has written for the same request.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random

from msgspec.structs import replace

from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.gbnf_parser import read_gbnf
from antiphon.core.constraint import Gbnf
from antiphon.dialects.registry import find
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from tests.constrain.sampler import Sampler
from tests.contracts.dialect import answers
from tests.matrix.case import Case, Json

FREE = "Let me see. "
"""What is written where nothing is demanded, and before a call that begins in free text."""


SLIPS: Mapping[str, Callable[[str], str]] = {
    "stray text": lambda marker: f"{marker} so, ",
    "doubled marker": lambda marker: marker * 2,
    "missing marker": lambda marker: "",
}
"""What is written in the place of a marker."""


def known(case: Case) -> Json | None:
    """What the dialect's cases say of the text that is written; None if there is none."""
    found = answers(case.dialect).get(case.text, {})
    return found if "output" in found and "known_broken" not in found else None


def written(case: Case) -> str:
    """The text of a model that does not look at its constraint."""
    if case.text not in SLIPS:
        return (known(case) or {}).get("output", FREE)
    output = "\n".join(
        answers(case.dialect).get(name, {}).get("output", FREE) for name in ("typed", "single")
    )
    markers = [*filter(None, sorted(find(case.dialect).grammar.markers, key=len, reverse=True)), *'{}"']
    places = [found.span() for found in re.finditer("|".join(map(re.escape, markers)), output)]
    if not places:
        return output
    start, end = Random(str(case)).choice(places)
    return output[:start] + SLIPS[case.text](output[start:end]) + output[end:]


@lru_cache(maxsize=64)
def _sampler(gbnf: str) -> Sampler:
    return Sampler(read_gbnf(gbnf, WorkBudget(10**9)), Random(0))


@lru_cache(maxsize=256)
def allowed(constraint: Gbnf, seed: int) -> str:
    """A text that the constraint lets through. Without a trigger it is free."""
    drawn = _sampler(constraint.text).draw(Random(seed))
    return FREE + drawn if constraint.triggers else drawn


class MatrixEngine(ScriptedEngine):
    """Writes for one case after the other: see `begin`. `wrote` are the texts since then.

    `closed` are those that end an answer that was cut: how many, and when, depends on the time.
    """

    def __init__(self, name: str, *, enforces: bool) -> None:
        able = replace(CAPABILITIES, constraints=(Gbnf,) if enforces else ())
        super().__init__([], name=name, capabilities=able)
        self.case = Case("")
        self.told: list[str] = []
        self.wrote: list[str] = []
        self.closed: list[str] = []
        self.requests: list[GenerationRequest] = []

    def begin(self, case: Case, told: list[str] | None = None) -> None:
        """Forget what was written. `told` are the texts that the choices of an answer are to have."""
        self.case, self.told = case, told or []
        self.wrote, self.closed, self.requests = [], [], []

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        text = self._text(request, 0 if request.answer_start else len(self.wrote))
        (self.closed if request.answer_start else self.wrote).append(text)
        self.requests.append(request)
        self.answers = [answer_of(Line(text, split=self.case.split))]
        return super().generate(request, receiver)

    def _text(self, request: GenerationRequest, number: int) -> str:
        if number < len(self.told):
            return self.told[number]
        if not self.case.obeys:
            return written(self.case)
        if isinstance(request.constraint, Gbnf):
            return allowed(request.constraint, number)
        return FREE
