"""Parses the settings of tools in a request: every error names the setting.

Most sandboxes last for one answer and start empty. Settings for files or a network are errors, if the
sandbox does not have them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.core.errors import RequestError
from antiphon.core.hosts import Note, unread
from antiphon.tools.tool import RequestedTool

T = TypeVar("T", bound=Struct)

MEMORY_LIMITS = ("1g", "4g", "16g", "64g")
"""The values that clients may set. They have no effect: sandboxes have their own limit."""

NO_NETWORK = "disabled"

NARROWING = frozenset(
    {
        *("filter", "filters", "metadata_filter", "where", "file_ids", "vector_store_ids", "score_threshold"),
        *("allowed_domains", "blocked_domains", "include_domains", "exclude_domains", "excluded_domains"),
        *("allowed_tools", "blocked_tools", "disallowed_tools", "excluded_tools", "tool_filter"),
    }
)
"""Settings that say what a tool must not find or do: a tool that does not know them refuses them."""


class _Policy(Struct, frozen=True):
    type: str = NO_NETWORK


class _Container(Struct, frozen=True):
    file_ids: list[str] | None = None
    memory_limit: str | None = None
    network_policy: _Policy | None = None
    skills: list[Any] | None = None


def check_container(container: Mapping[str, Any], where: str, *, files: bool = False) -> tuple[Note, ...]:
    """Notes on the container at `where` in a request, which may have `files` or not. Raises RequestError."""
    given = parse_settings(container, _Container, where)
    if given.file_ids and not files:
        raise invalid_setting(
            f"{where}.file_ids", "This tool has no files. Leave it out, and put texts into the input."
        )
    if given.memory_limit not in (None, *MEMORY_LIMITS):
        raise invalid_setting(f"{where}.memory_limit", f"Use one of {', '.join(MEMORY_LIMITS)}.")
    if given.network_policy and given.network_policy.type != NO_NETWORK:
        raise invalid_setting(
            f"{where}.network_policy", f"There is no network. Use {{'type': '{NO_NETWORK}'}}."
        )
    if given.skills:
        raise invalid_setting(f"{where}.skills", "This server has no skills. Leave it out.")
    return unread(container, where, ("type", "file_ids", "network_policy", "skills"))


def unread_settings(requested: RequestedTool, read: Iterable[str]) -> tuple[Note, ...]:
    """Notes on settings of a tool that are not `read`. Raises RequestError for those of `NARROWING`."""
    notes = unread(requested.settings, requested.where, read)
    for note in notes:
        if note.param.removeprefix(f"{requested.where}.") in NARROWING:
            raise invalid_setting(
                note.param, "This server cannot restrict the tool in this way. Leave it out."
            )
    return notes


def parse_settings(settings: Mapping[str, Any], type_: type[T], where: str) -> T:
    """Settings at `where` in the request, as this type has them. Raises RequestError."""
    try:
        return msgspec.convert(settings, type_)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        raise invalid_setting(where + path.rstrip("`"), f"{what}.") from error


def invalid_setting(param: str, remedy: str) -> RequestError:
    """The error for an unsupported setting."""
    return RequestError(f"Invalid value for '{param}': {remedy}", param=param)
