"""The options of tools, and what a server gives those that they open."""

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from antiphon.core.limits import DEFAULTS, Limits
from antiphon.tools.tool import ServerTool

if TYPE_CHECKING:
    from antiphon.toolkits.code_interpreter.whole_python import Keeper
    from antiphon.toolkits.file_search.tool import Searcher


class ServerParts(Struct, frozen=True):
    """What a server gives its tools: its limits, its vector stores, and its containers."""

    files: "Searcher"
    containers: "Keeper"
    limits: Limits = DEFAULTS


class ToolOptions(Protocol):
    """The options of a tool: a frozen dataclass.

    Its fields are options of `antiphon serve`, with a variable and a TOML key each; a type of
    `cyclopts.types` restricts the values, and the string under a field is its help text. Neither the module
    nor the class imports an optional extra: `open` does.
    """

    def open(self, server: ServerParts) -> ServerTool | None:
        """The tool, None if these options request none.

        Raises AntiphonError, with the remedy, for options that cannot be used.
        """
        ...
