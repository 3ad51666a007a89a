"""Settings of MCP servers, from requests and from operators: their targets, and the tools that may be called.

The operator's settings of a server restrict those of requests: a tool must be allowed by both, and a call
needs an approval if either demands one.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import httpx2
from msgspec import Struct

from antiphon.core.errors import RequestError
from antiphon.core.hosts import ListedTool
from antiphon.tools.mcp.connection import Target
from antiphon.tools.settings import invalid_setting, parse_settings

ANY_PUBLIC = "*"
"""The host that means all public ones."""
READ = frozenset(
    {
        "type",
        "server_label",
        "server_url",
        "connector_id",
        "authorization",
        "headers",
        "allowed_tools",
        "require_approval",
        "server_description",
        "allowed_callers",
    }
)
"""The members of the tool that are acted on."""
MAX_URL = 2000
MAX_HEADERS = 32
MAX_HEADER = 8192
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
_OWN_HEADERS = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "last-event-id", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)

Approval = Literal["always", "never"]


class ToolFilter(Struct, frozen=True):
    """A selection of a server's tools: by name, if there are names; `read_only`, as they declare it."""

    tool_names: Sequence[str] | None = None
    read_only: bool | None = None

    def admits(self, tool: ListedTool) -> bool:
        """Whether the tool is selected."""
        read_only = bool((tool.annotations or {}).get("readOnlyHint"))
        return (self.tool_names is None or tool.name in self.tool_names) and (
            self.read_only is None or self.read_only == read_only
        )


class ApprovalFilter(Struct, frozen=True):
    """The tools that always need an approval, and those that never do. All others need one."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


class Policy(Struct, frozen=True):
    """Which tools may be called, and whether the client has to approve each call."""

    allowed: ToolFilter | None = None
    approval: Approval | ApprovalFilter = "always"

    def allows(self, tool: ListedTool) -> bool:
        """Whether the model may be offered it."""
        return self.allowed is None or self.allowed.admits(tool)

    def requires_approval(self, tool: ListedTool) -> bool:
        """Whether a call has to be approved."""
        match self.approval:
            case ApprovalFilter(always, never):
                if always is not None and always.admits(tool):
                    return True
                return never is None or not never.admits(tool)
        return self.approval == "always"


class _McpSettings(Struct, frozen=True):
    server_label: str
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Approval | ApprovalFilter | None = None
    server_description: str | None = None
    allowed_callers: list[str] | None = None


class RequestedServer(Struct, frozen=True):
    """A server in a request: at a `target`, or one of the operator's, by `name`."""

    label: str
    name: str = ""
    target: Target | None = None
    allowed: ToolFilter | None = None
    approval: Approval | ApprovalFilter | None = None
    description: str = ""


def parse(settings: Mapping[str, Any], where: str, hosts: Sequence[str]) -> RequestedServer:
    """The tool at `where` in a request, which may name servers on these hosts. Raises RequestError."""
    given = parse_settings(settings, _McpSettings, where)
    if not _LABEL.match(given.server_label):
        raise invalid_setting(f"{where}.server_label", "Use 1 to 64 of: letters, digits, '_', '-'.")
    if given.tunnel_id is not None:
        raise invalid_setting(f"{where}.tunnel_id", "This server has no tunnels. Use 'server_url'.")
    if given.server_url is not None and given.connector_id is not None:
        raise invalid_setting(f"{where}.connector_id", "Send either 'connector_id' or 'server_url'.")
    if given.allowed_callers and "direct" not in given.allowed_callers:
        raise invalid_setting(
            f"{where}.allowed_callers",
            "The tools of MCP servers can be called only by the model itself. Add 'direct'.",
        )
    headers = _headers(given, where)
    target = None
    if given.server_url is not None:
        trusted = _check_url(given.server_url, f"{where}.server_url", hosts)
        target = Target(given.server_label, given.server_url, headers, trusted=trusted)
    elif headers:
        name = "authorization" if given.authorization else "headers"
        raise invalid_setting(f"{where}.{name}", "The operator sets it for this MCP server. Leave it out.")
    allowed = given.allowed_tools
    return RequestedServer(
        given.server_label,
        "" if target else given.connector_id or given.server_label,
        target,
        ToolFilter(allowed) if isinstance(allowed, list) else allowed,
        given.require_approval,
        given.server_description or "",
    )


def _headers(given: _McpSettings, where: str) -> dict[str, str]:
    headers = {}
    for name, value in (given.headers or {}).items():
        place = f"{where}.headers.{name[:128]}"
        if not _HEADER_NAME.match(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("mcp-"):
            raise invalid_setting(place, "This header cannot be sent. Leave it out.")
        if not _HEADER_VALUE.match(value) or len(value) > MAX_HEADER:
            raise invalid_setting(place, f"Use at most {MAX_HEADER} printable ASCII characters.")
        headers[name] = value
    if len(headers) > MAX_HEADERS:
        raise invalid_setting(f"{where}.headers", f"Send at most {MAX_HEADERS} headers.")
    if given.authorization is not None:
        if any(name.lower() == "authorization" for name in headers):
            raise invalid_setting(
                f"{where}.authorization", "'headers' has an authorization, too. Send one of them."
            )
        if not _HEADER_VALUE.match(given.authorization) or len(given.authorization) > MAX_HEADER:
            raise invalid_setting(f"{where}.authorization", "Expected a token.")
        headers["Authorization"] = f"Bearer {given.authorization.removeprefix('Bearer ')}"
    return headers


def _check_url(text: str, where: str, hosts: Sequence[str]) -> bool:
    """Whether the operator trusts the host of this URL. Raises RequestError if requests may not name it."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host or len(text) > MAX_URL:
        raise invalid_setting(where, "Expected the URL of an MCP server.")
    if url.userinfo:
        raise invalid_setting(where, "The URL may not have a user name or a password. Use 'authorization'.")
    names = (url.host, f"{url.host}:{url.port or {'http': 80, 'https': 443}[url.scheme]}")
    if any(fnmatchcase(name, host) for host in hosts if host != ANY_PUBLIC for name in names):
        return True
    if ANY_PUBLIC not in hosts:
        known = (
            f"Use one of these hosts: {', '.join(hosts)}."
            if hosts
            else "Name an MCP server of the operator by its label."
        )
        raise invalid_setting(where, f"This server does not connect to MCP servers on this host. {known}")
    if url.scheme != "https":
        raise invalid_setting(where, "Use https.")
    return False


def missing(asked: RequestedServer, where: str, known: Sequence[str]) -> RequestError:
    """The error of a server that the operator has not named, or not for this key."""
    names = f"Use one of: {', '.join(known)}." if known else "Give it a 'server_url'."
    message = (
        f"Invalid value for '{where}': There is no MCP server '{asked.name[:64]}' that "
        f"your key may use. {names}"
    )
    return RequestError(message, param=where)
