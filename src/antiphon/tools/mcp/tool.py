"""The tool `mcp`: a request may have several, one for each MCP server.

Its functions are those that the server lists, unless the conversation has a listing already. Any failure of
a server is the result of a call, or the error of a listing.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from antiphon.core.errors import RequestError
from antiphon.core.hosts import TRAINED_LABELS, ListedTool, Note
from antiphon.core.limits import DEFAULTS, Limits, check_body
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.tools.mcp.connection import FailureError, Network, Target
from antiphon.tools.mcp.content import result_of
from antiphon.tools.mcp.servers import ConnectionLease, McpConnections, OperatorServer, labels
from antiphon.tools.mcp.settings import READ, Policy, RequestedServer, missing, parse
from antiphon.tools.settings import unread_settings
from antiphon.tools.tool import RequestedTool, ToolOffer

TYPE = "mcp"
MAX_NAME = 64
"""The most characters of a function's name, for models and clients."""
MAX_DESCRIPTION = 4000
SESSION_HEADER = "x-session-id"
"""For servers of tools that models were trained with: equal for the calls of one answer."""

SHOWN = 40
"""Characters of a bad name that a note shows."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""The names of tools, as the protocol has them."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
"""What the APIs do not allow in names of functions."""


class Mcp:
    """The tool. Requests may name servers on these `hosts`, and the operator's `servers`."""

    type = TYPE
    aliases = ()

    def __init__(
        self,
        network: Network,
        servers: Sequence[OperatorServer] = (),
        hosts: Sequence[str] = (),
        limits: Limits = DEFAULTS,
    ) -> None:
        self._servers = {server.label: server for server in servers}
        self._hosts = hosts
        self._limits = limits
        self._connections = McpConnections(self._servers, network, limits)

    @property
    def defaults(self) -> tuple[Mapping[str, Any], ...]:
        """The settings of the tools that every request has."""
        return tuple(
            {"type": TYPE, "server_label": server.label}
            for server in self._servers.values()
            if server.default
        )

    @property
    def labels(self) -> Container[str]:
        return self._servers.keys()

    async def start(self) -> None:
        """Connect to the operator's servers."""
        await self._connections.start()

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        """Listed tools that cannot be offered are left out, with a note."""
        asked = parse(requested.settings, requested.where, self._hosts)
        target, policies, description = self._resolved(asked, requested)
        listing = requested.listing or await self._connections.listing(target, requested.owner)
        notes = [*unread_settings(requested, READ)]
        functions: dict[str, Function] = {}
        named: list[ListedTool] = []
        for tool in listing.tools:
            if not all(policy.allows(tool) for policy in policies):
                continue
            function = _function(tool, asked.label, policies, description)
            if (why := _fault_of_name(tool, function, functions)) is None:
                named.append(tool)
                why = self._fault_of_schema(tool)
            if why is None:
                functions[function.name] = function
            else:
                message = f"The tool {tool.name[:SHOWN]!a} of '{asked.label}' is left out: {why}"
                notes.append(Note(requested.where, message))
        offered = replace(listing, label=asked.label, tools=tuple(named))
        return ToolOffer(tuple(functions.values()), tuple(notes), offered)

    def _fault_of_schema(self, tool: ListedTool) -> str | None:
        """Why the schema of a tool cannot be used, if it cannot."""
        try:
            check_body(tool.input_schema, self._limits)
        except RequestError as error:
            return error.message
        return None

    def open(self, requested: RequestedTool) -> "McpSession":
        asked = parse(requested.settings, requested.where, self._hosts)
        target, *_ = self._resolved(asked, requested)
        if asked.label in TRAINED_LABELS and target.url:
            headers = {**target.headers, SESSION_HEADER: requested.answer or uuid4().hex}
            target = replace(target, headers=headers)  # so the connection is the answer's own
        return McpSession(ConnectionLease(self._connections, target, requested.owner), self._limits)

    async def close(self) -> None:
        await self._connections.close()

    def _resolved(
        self, asked: RequestedServer, requested: RequestedTool
    ) -> tuple[Target, tuple[Policy, ...], str]:
        """The target of the server, its policy, and its description. Raises RequestError."""
        if asked.target is not None:
            return asked.target, (Policy(asked.allowed, asked.approval or "always"),), asked.description
        server = self._servers.get(asked.name)
        if server is None or not server.admits(requested.owner):
            raise missing(asked, f"{requested.where}.server_label", labels(self._servers, requested.owner))
        own = Policy(asked.allowed, asked.approval or "never")
        return server.target, (server.policy, own), asked.description or server.description


class McpSession:
    """The use of an MCP server for one answer: a `Session` of `tools.tool`."""

    def __init__(self, lease: ConnectionLease, limits: Limits) -> None:
        self._lease = lease
        self._limits = limits

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        try:
            connection = await self._lease.connection()
            return result_of(await connection.call(action, arguments), self._limits.mcp_characters)
        except FailureError as error:
            return ToolResult(error.failure.message, error.failure, failed=True)

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """The server itself keeps its state: nothing is called again."""

    async def close(self) -> None:
        await self._lease.close()


def _fault_of_name(tool: ListedTool, function: Function, others: Container[str]) -> str | None:
    """Why the name of a tool cannot be used, if it cannot."""
    if not _NAME.fullmatch(tool.name):
        return "Its name may have 1 to 128 letters, digits, '_', '-', '.' and '/'."
    if function.name in others:
        return f"Another tool is also called '{function.name}'. Rename one."
    return None


def _function(tool: ListedTool, label: str, policies: Sequence[Policy], about: str) -> Function:
    description = "\n".join(filter(None, (tool.description, about and f"({label}: {about})")))
    schema = tool.input_schema if tool.input_schema.get("type") == "object" else {"type": "object"}
    said = tool.annotations or {}
    hosted = Hosted(
        TYPE,
        tool.name,
        label=label,
        approval=any(policy.requires_approval(tool) for policy in policies),
        parallel=said.get("readOnlyHint") is True,
        idempotent=True in (said.get("readOnlyHint"), said.get("idempotentHint")),
    )
    return Function(
        _NOT_IN_NAMES.sub("_", tool.name)[:MAX_NAME],
        description[:MAX_DESCRIPTION] or tool.name[:MAX_NAME],
        schema,
        hosted=hosted,
    )
