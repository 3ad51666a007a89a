"""What a constraint does not hold the model to."""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from antiphon.core.errors import RequestError

_MENTIONED = 5


class Unenforced(NamedTuple):
    """Something that the model may violate while it decodes, so that it must be checked afterwards.

    `param` is the part of the request, `tools[0].function.parameters`; `pointer` is the place in
    it as a JSON pointer, `/properties/age`; `what` names the keyword and why.
    """

    param: str
    pointer: str
    what: str

    def __str__(self) -> str:
        return f"{self.pointer or '(root)'}: {self.what}"


def refuse(found: Sequence[Unenforced]) -> NoReturn:
    """Say that a strict schema asks for more than can be enforced."""
    listed = "; ".join(map(str, found[:_MENTIONED]))
    more = f"; and {len(found) - _MENTIONED} more" if len(found) > _MENTIONED else ""
    raise RequestError(
        f"This strict schema cannot be enforced whole: {listed}{more}. Change it, or set strict to false.",
        param=found[0].param,
    )
