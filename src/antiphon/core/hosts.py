"""The server tools of a request: the functions that a model is offered for them, and notes on the others."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.turn import Function


class Note(Struct, frozen=True):
    """A remark on a part of a request that was accepted and has no effect, or not the expected one.

    Every answer has its notes in the field `notes`, and the log has them, too.
    """

    param: str
    message: str


class ListedTool(Struct, frozen=True):
    """A tool as a remote server lists it."""

    name: str
    description: str | None = None
    input_schema: Mapping[str, Any] = {}
    annotations: Mapping[str, Any] | None = None


class Listing(Struct, frozen=True):
    """The tools of a remote server, identified by its label; or `error`, why they could not be listed.

    If it is `known`, it was taken from the conversation, without a request to the server.
    """

    label: str
    tools: tuple[ListedTool, ...] = ()
    error: str | None = None
    known: bool = False


TRAINED_LABELS: Mapping[str, str] = {
    "code_interpreter": "code_interpreter",
    "web_search_preview": "web_search",
    "container": "shell",
}
"""Label of an MCP server that replaces a tool which models were trained with → the type of that tool."""

STANDING: Mapping[str, str] = {
    "code_interpreter": "code_interpreter",
    "web_search": "web_search_preview",
    "web_search_2025_08_26": "web_search_preview",
    "web_search_preview": "web_search_preview",
    "web_search_preview_2025_03_11": "web_search_preview",
    "container": "container",
}
"""Type of a tool that the server does not run → label of the operator's MCP server that stands for it."""

DEFAULTS = "default tools"
"""The place of tools that no request has to name."""


class Hosts(Struct, frozen=True):
    """The result of `tools.discovery.discover`.

    `functions` are offered for the tool at a place in the request, such as `tools[0]`: none if the server
    does not run it, or must not; then `notes` say so. `types` are those of all server tools, by each name
    that clients may use for one. `listings` are those of remote servers.
    """

    functions: Mapping[str, tuple[Function, ...]] = {}
    types: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()
    listings: tuple[Listing, ...] = ()

    @property
    def defaults(self) -> tuple[Function, ...]:
        """The functions of tools that the request does not name."""
        defaults = (functions for place, functions in self.functions.items() if place.startswith(DEFAULTS))
        return tuple(function for functions in defaults for function in functions)

    def type_of(self, name: str) -> str:
        """The type of a tool that may go by several names."""
        return self.types.get(name, name)


NOTHING: tuple[object, ...] = (None, False, [], {}, "")
"""Values that request nothing."""


def unread(given: Mapping[str, Any], where: str, read: Iterable[str]) -> tuple[Note, ...]:
    """Notes on the members of an object at `where` in a request that are not among those that are `read`."""
    known = frozenset(read)
    return tuple(
        Note(f"{where}.{name}", f"'{where}.{name}' has no effect on this server.")
        for name, value in given.items()
        if name not in known and value not in NOTHING
    )
