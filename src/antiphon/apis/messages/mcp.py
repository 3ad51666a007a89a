"""MCP servers in the Messages API: `mcp_servers`, and which of their tools `mcp_toolset`s enable.

The older form has no toolsets: all tools of a server are enabled, or those of its `tool_configuration`. This
API has no approvals: a client that names a server allows calls of its tools.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.apis.request_object import Object, RequestObject, object_at
from antiphon.core.errors import RequestError

TOOLSET = "mcp_toolset"
TOKEN = "authorization_token"  # noqa: S105 - the name of a parameter
_NAMES = {"server_url": "url", "authorization": TOKEN, "server_label": "name"}
"""The tool `mcp`'s names of settings → the names in this API."""


def mcp_settings(tools: Sequence[Any] | None, servers: Sequence[Any] | None) -> dict[str, Object]:
    """The settings of the tool `mcp`, by the places of servers, or of toolsets of the operator's servers.

    Raises RequestError.
    """
    named = _servers(servers)
    settings = {server.where: _settings(server) for server in named.values()}
    for where, place in toolset_places(tools, servers).items():
        toolset = _toolsets(tools)[where]
        if place == where:
            settings[where] = {"type": "mcp", "server_label": toolset.named("mcp_server_name")}
        if not _flag(toolset.object_or_none("default_config")):
            configs = toolset.object_or_none("configs") or RequestObject({}, "")
            settings[place]["allowed_tools"] = [name for name in configs.value if is_enabled(toolset, name)]
    return settings


def toolset_places(tools: Sequence[Any] | None, servers: Sequence[Any] | None) -> Mapping[str, str]:
    """Place of each toolset → that of its server; its own, if the server is the operator's.

    Raises RequestError.
    """
    named, places = _servers(servers), dict[str, str]()
    for where, toolset in _toolsets(tools).items():
        server = named.get(toolset.named("mcp_server_name"))
        place = server.where if server is not None else where
        if place in places.values():
            raise toolset.wrong("mcp_server_name", "There are two toolsets of this server. Leave one out.")
        places[where] = place
    return places


def is_enabled(toolset: RequestObject, name: str) -> bool:
    """Whether the toolset lets a tool be called."""
    configs = toolset.object_or_none("configs")
    own = configs.object_or_none(name) if configs is not None else None
    return _flag(own, _flag(toolset.object_or_none("default_config")))


def is_deferred(toolset: RequestObject, name: str) -> bool:
    """Whether a tool waits until it is found."""
    configs = toolset.object_or_none("configs")
    own = configs.object_or_none(name) if configs is not None else None
    for config in (own, toolset.object_or_none("default_config")):
        flag = config.flag_or_none("defer_loading") if config is not None else None
        if flag is not None:
            return flag
    return False


def rename(error: RequestError) -> RequestError:
    """The error with this API's name of a setting."""
    where, _, name = (error.param or "").rpartition(".")
    if where.startswith("mcp_servers[") and name in _NAMES:
        error.param = f"{where}.{_NAMES[name]}"
        error.message = error.message.replace(f"{where}.{name}", error.param).replace("'server_url'", "'url'")
    elif name == "server_label":
        error.param = f"{where}.mcp_server_name"
        error.message = error.message.replace(f"{where}.{name}", error.param)
    return error


def with_changed_tokens(params: Object, change: Callable[[str], str | None]) -> Object:
    """The request with its tokens changed: sealed to be stored, or opened."""
    servers = params.get("mcp_servers")
    if not isinstance(servers, list):
        return params
    return {**params, "mcp_servers": [_changed(server, change) for server in servers]}


def _changed(server: Any, change: Callable[[str], str | None]) -> Any:
    token = server.get(TOKEN) if isinstance(server, dict) else None
    return {**server, TOKEN: change(token)} if isinstance(token, str) else server


def _servers(servers: Sequence[Any] | None) -> dict[str, RequestObject]:
    """The servers that the request names, by name."""
    by_name: dict[str, RequestObject] = {}
    for index, value in enumerate(servers or ()):
        server = object_at(value, f"mcp_servers[{index}]")
        name = server.named("name")
        if server.text("type") != "url":
            raise server.wrong("type", "Use 'url'.")
        if name in by_name:
            raise server.wrong("name", "There are two servers of this name. Rename one.")
        by_name[name] = server
    return by_name


def _toolsets(tools: Sequence[Any] | None) -> dict[str, RequestObject]:
    """The toolsets, by their places."""
    places = (object_at(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))
    return {tool.where: tool for tool in places if tool.text_or_none("type") == TOOLSET}


def _settings(server: RequestObject) -> Object:
    settings: Object = {
        "type": "mcp",
        "server_label": server.named("name"),
        "server_url": server.text("url"),
        "require_approval": "never",
    }
    if (token := server.text_or_none(TOKEN)) is not None:
        settings["authorization"] = token
    if (older := server.object_or_none("tool_configuration")) is not None:
        allowed = older.value.get("allowed_tools")
        if older.flag_or_none("enabled") is False:
            allowed = []
        settings["allowed_tools"] = allowed
    return settings


def _flag(config: RequestObject | None, default: bool = True) -> bool:
    enabled = config.flag_or_none("enabled") if config is not None else None
    return default if enabled is None else enabled
