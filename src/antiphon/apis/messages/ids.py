"""The ids of calls: clients get them with Anthropic's prefix, models with that of their family."""

TOOL_USE = "toolu_"
SERVER_TOOL_USE = "srvtoolu_"
MCP_TOOL_USE = "mcptoolu_"

_PREFIXES = (TOOL_USE, SERVER_TOOL_USE, MCP_TOOL_USE)


def wire_id(prefix: str, call_id: str) -> str:
    """The id of a call as clients get it."""
    return prefix + call_id.removeprefix("call_")


def core_id(given: str) -> str:
    """The id of the call in prompts, for any form of the id in requests."""
    for prefix in _PREFIXES:
        if given.startswith(prefix) and given != prefix:
            return given.removeprefix(prefix)
    return given
