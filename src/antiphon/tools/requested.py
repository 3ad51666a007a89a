"""Reads what a request says of a tool: every error names the place of what is wrong."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.core.errors import RequestError

T = TypeVar("T", bound=Struct)


def read(settings: Mapping[str, Any], type_: type[T], where: str) -> T:
    """Settings that stand at `where` in the request, as a type has them. Raises RequestError."""
    try:
        return msgspec.convert(settings, type_)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise wrong(where + path.rstrip("`"), f"{what}.") from error


def wrong(param: str, remedy: str) -> RequestError:
    """The error of a setting that cannot be honoured."""
    return RequestError(f"Invalid value for '{param}': {remedy}", param=param)
