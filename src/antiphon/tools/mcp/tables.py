"""The operator's MCP servers: the tables `[[mcp_servers]]` of the TOML file.

This module imports no MCP package.
"""

import os
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

VARIABLE = "$"
"""The prefix of a value that is the name of an environment variable."""


class ToolNames(Struct, frozen=True, forbid_unknown_fields=True):
    """The tools that always need an approval, and those that never do. All others need one."""

    always: list[str] | None = None
    never: list[str] | None = None


class McpServer(Struct, frozen=True, forbid_unknown_fields=True):
    """A table: a `url`, or a `command` to start, with this `environment` in addition to PATH and the like.

    Only owners of the `keys` may use it, if there are any. A `stateful` one has a connection (a process) for
    each key; a `default` one is offered to every request.
    """

    label: str
    url: str = ""
    command: str | list[str] = ""
    headers: dict[str, str] = {}
    environment: dict[str, str] = {}
    allowed_tools: list[str] | None = None
    require_approval: Literal["always", "never"] | ToolNames = "always"
    keys: list[str] = []
    stateful: bool = False
    default: bool = False
    description: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The command, in words."""
        return tuple(shlex.split(self.command) if isinstance(self.command, str) else self.command)


def read_servers(tables: Any) -> tuple[McpServer, ...]:
    """The servers in these tables. Raises ValueError."""
    try:
        servers = msgspec.convert(tables, tuple[McpServer, ...])
    except msgspec.ValidationError as error:
        raise ValueError(f"mcp_servers: {error}.") from error
    labels = [server.label for server in servers]
    for server in servers:
        if not server.label.replace("-", "_").isidentifier() or len(server.label) > 64:
            raise ValueError(
                f"mcp_servers: '{server.label}' is not a label. Use letters, digits, '_' and '-'."
            )
        if labels.count(server.label) > 1:
            raise ValueError(f"mcp_servers: two servers have the label '{server.label}'. Rename one.")
        if bool(server.url) == bool(server.words):
            raise ValueError(f"mcp_servers: '{server.label}' needs either a url or a command.")
        _expand_variables(server.headers, server.label)
        _expand_variables(server.environment, server.label)
    return servers


def _expand_variables(values: Mapping[str, str], label: str) -> dict[str, str]:
    """The values, with those of variables. Raises ValueError for a variable that is not set."""
    expanded = {}
    for name, value in values.items():
        variable = value.removeprefix(VARIABLE) if value.startswith(VARIABLE) else None
        if variable is not None and variable not in os.environ:
            raise ValueError(f"mcp_servers: '{label}' needs the variable {variable}, which is not set.")
        expanded[name] = value if variable is None else os.environ[variable]
    return expanded


def expand_variables(values: Mapping[str, str]) -> dict[str, str]:
    """The same for values that were read before."""
    return _expand_variables(values, "")
