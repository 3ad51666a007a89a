"""Reads JSON of clients that is not decoded into types: items, parts, tools.

These have dozens of forms, and more each month. The fields that Antiphon needs are looked up by name, and
errors name the place in the request, `input[2].content[0].text`. The rest stays unchanged.
"""

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec

from antiphon.core.errors import RequestError

Object = dict[str, Any]
"""A JSON object."""

P = ParamSpec("P")
R = TypeVar("R")


class RequestObject(NamedTuple):
    """A JSON object, and its place in the request."""

    value: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """The string of this name. Raises RequestError if it is missing."""
        text = self.text_or_none(name)
        if text is None:
            raise self.missing(name)
        return text

    def text_or_none(self, name: str) -> str | None:
        """The string of this name, None if it is absent or null."""
        value = self.value.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "Expected a string.")

    def named(self, name: str) -> str:
        """The string of this name, which may not be empty."""
        text = self.text(name)
        if not text:
            raise self.wrong(name, "It may not be empty.")
        return text

    def flag_or_none(self, name: str) -> bool | None:
        """The truth value of this name, None if it is absent or null."""
        value = self.value.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(name, "Expected true or false.")

    def object_or_none(self, name: str) -> "RequestObject | None":
        """The object of this name, None if it is absent or null."""
        value = self.value.get(name)
        return None if value is None else object_at(value, self.place(name))

    def objects(self, name: str) -> "list[RequestObject]":
        """The objects in the array of this name, none if it is absent or null."""
        value = self.value.get(name)
        if not isinstance(value, list | None):
            raise self.wrong(name, "Expected an array.")
        return [object_at(part, f"{self.place(name)}[{index}]") for index, part in enumerate(value or ())]

    def made_by(
        self, make: Callable[Concatenate["RequestObject", P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """What this function makes of the object. One that is kept is given to it once, see `KeptObject`."""
        return make(self, *args, **kwargs)

    def place(self, name: str) -> str:
        """The place of the field of this name."""
        return f"{self.where}.{name}" if self.where else name

    def missing(self, name: str, remedy: str = "") -> RequestError:
        """The error for a missing field."""
        param = self.place(name)
        message = f"Missing required parameter: '{param}'. {remedy}".rstrip()
        return RequestError(message, param=param, code="missing_required_parameter")

    def wrong(self, name: str, remedy: str) -> RequestError:
        """The error of a field with a wrong value."""
        param = self.place(name)
        return RequestError(f"Invalid value for '{param}': {remedy}", param=param)


class KeptObject(RequestObject):
    """An object that never changes, with what was made of it.

    A function that makes something of it returns the same each time, and nobody changes that.
    """

    def __init__(self, value: Mapping[str, Any], where: str) -> None:
        del value, where  # the tuple has them
        self._made: dict[Any, Any] = {}

    def made_by(
        self, make: Callable[Concatenate[RequestObject, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        if make not in self._made:
            self._made[make] = make(self, *args, **kwargs)
        made: R = self._made[make]
        return made


def object_at(value: object, where: str) -> RequestObject:
    """A value that has to be an object. Raises RequestError."""
    if not isinstance(value, dict):
        raise RequestError(f"Invalid value for '{where}': Expected an object.", param=where)
    return RequestObject(value, where)


def json_text(value: object) -> str:
    """A value as JSON text; text stays as it is, and None is an empty object."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode({} if value is None else value).decode()
