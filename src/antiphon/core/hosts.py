"""What a model is offered of the tools of a request that the server runs."""

from collections.abc import Mapping

from msgspec import Struct

from antiphon.core.turn import Function


class Hosts(Struct, frozen=True):
    """What `tools.discovery.discover` found.

    `functions` are offered for the tool at a place in the request, such as `tools[0]`: none, if the server
    does not run it, or is not to. `types` are those of all tools of the server, by each name that
    clients know one by.
    """

    functions: Mapping[str, tuple[Function, ...]] = {}
    types: Mapping[str, str] = {}

    def type_of(self, name: str) -> str:
        """The type of a tool that may go by several names."""
        return self.types.get(name, name)
