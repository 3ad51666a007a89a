"""Reads query parameters; what does not fit becomes a 400 that names the parameter."""

from collections.abc import Mapping
from typing import Literal, cast

from antiphon.core.errors import RequestError
from antiphon.store.records import Paging

MOST_ON_PAGE = 100
"""The most entries of a list that one request gets, as OpenAI has it."""
MOST_DIGITS = 18
"""Digits of a number that every database holds."""

Order = Literal["asc", "desc"]

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class Query:
    """The parameters of one request."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        """The parameter as it is; None if it is missing or empty."""
        value = self._given.get(name)
        if value and "\0" in value:
            raise _wrong(name, "No text holds U+0000 here.")
        return value or None

    def flag(self, name: str) -> bool:
        """True or false; false if it is missing."""
        value = self._given.get(name, "false").lower()
        if value not in _TRUTH:
            raise _wrong(name, "Use true or false.")
        return _TRUTH[value]

    def number(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        """A whole number between `least` and `most`."""
        value = self._given.get(name)
        if value is None:
            return default
        number = int(value) if value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS else -1
        if number < least or (most and number > most):
            to = f" to {most}" if most else " on"
            raise _wrong(name, f"Use a number from {least}{to}.")
        return number

    def paging(self, order: Order = "desc") -> Paging:
        """Which part of a list is wanted: `order`, by default this one, `after`, `before` and `limit`."""
        wanted = self._given.get("order", order)
        if wanted not in ("asc", "desc"):
            raise _wrong("order", "Use asc or desc.")
        limit = self.number("limit", Paging().limit, least=1, most=MOST_ON_PAGE)
        return Paging(cast(Order, wanted), self.text("after"), self.text("before"), limit)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The parameters of the form `prefix[KEY]`, by key."""
        return {
            name[len(prefix) + 1 : -1]: value
            for name, value in self._given.items()
            if name.startswith(f"{prefix}[") and name.endswith("]")
        }


def _wrong(name: str, remedy: str) -> RequestError:
    return RequestError(f"Invalid value for '{name}': {remedy}", param=name)
