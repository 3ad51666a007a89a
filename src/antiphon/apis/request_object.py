"""Reads JSON of clients that is not decoded into types: items, parts, tools.

These have dozens of forms, and more each month. The fields that Antiphon needs are looked up by name, and
errors name the place in the request, `input[2].content[0].text`. The rest stays unchanged.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from antiphon.core.errors import RequestError

Object = dict[str, Any]
"""A JSON object."""


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
