"""What a model is offered of the tools of a request that the server runs."""

from collections.abc import Mapping

from msgspec import Struct

from antiphon.core.errors import RequestError
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

    def refusal(self, type_: str, where: str, *client_types: str) -> RequestError:
        """Why a tool of this type is not offered; `client_types` are those that clients run."""
        if type_ in self.types:
            message = f"Its settings keep this tool from the server. Leave it out of '{where}', or them."
            return RequestError(message, param=where)
        known = ", ".join(f"'{known}'" for known in (*client_types, *dict.fromkeys(self.types.values())))
        message = f"Tools of type '{type_}' are not run here. Use one of {known}."
        return RequestError(message, param=f"{where}.type")
