"""What a model is offered of the tools of a request that the server runs; what is said of the others."""

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

    One that was `known` from the conversation was not asked for again.
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
"""Label of an MCP server that stands for a tool which models were trained with → the type of that tool."""

DEFAULTS = "default tools"
"""The place of tools that no request has to name."""


class Hosts(Struct, frozen=True):
    """What `tools.discovery.discover` found.

    `functions` are offered for the tool at a place in the request, such as `tools[0]`: none, if the server
    does not run it, or is not to; then `notes` say so. `types` are those of all tools of the server, by each
    name that clients know one by. `listings` are those of remote servers.
    """

    functions: Mapping[str, tuple[Function, ...]] = {}
    types: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()
    listings: tuple[Listing, ...] = ()

    @property
    def defaults(self) -> tuple[Function, ...]:
        """What is offered of tools that the request does not name."""
        found = (functions for where, functions in self.functions.items() if where.startswith(DEFAULTS))
        return tuple(function for functions in found for function in functions)

    def type_of(self, name: str) -> str:
        """The type of a tool that may go by several names."""
        return self.types.get(name, name)


NOTHING: tuple[object, ...] = (None, False, [], {}, "")
"""Values that ask for nothing."""


def unread(given: Mapping[str, Any], where: str, read: Iterable[str]) -> tuple[Note, ...]:
    """Notes on the members of an object at `where` in a request that are not among those that are `read`."""
    known = frozenset(read)
    return tuple(
        Note(f"{where}.{name}", f"'{where}.{name}' has no effect on this server.")
        for name, value in given.items()
        if name not in known and value not in NOTHING
    )
