"""Secrets in the tools of a request: they are returned to nobody, and stored only sealed."""

from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.apis.request_object import Object

SECRET = frozenset({"authorization", "headers"})
"""Members of a tool that only the server that it names may see."""
SEALED = "sealed_secrets"
"""The field with the sealed secrets of a stored tool."""


def without_secrets(tool: Object) -> Object:
    """The tool without the secrets for its server."""
    return {name: value for name, value in tool.items() if name not in (*SECRET, SEALED)}


def sealed_tools(tools: list[Any] | None, seal: Callable[[str], str] | None) -> list[Any] | None:
    """The tools as they are stored: with their secrets sealed for background responses, or without any."""
    return tools and [_sealed(tool, seal) if isinstance(tool, dict) else tool for tool in tools]


def _sealed(tool: Object, seal: Callable[[str], str] | None) -> Object:
    secrets = {name: tool[name] for name in SECRET if tool.get(name)}
    kept = without_secrets(tool)
    if secrets and seal is not None:
        kept[SEALED] = seal(msgspec.json.encode(secrets).decode())
    return kept


def unsealed_tools(tools: list[Any] | None, unseal: Callable[[str], str | None]) -> list[Any] | None:
    """The tools that were stored, with their secrets."""
    return tools and [_unsealed(tool, unseal) if isinstance(tool, dict) else tool for tool in tools]


def _unsealed(tool: Object, unseal: Callable[[str], str | None]) -> Object:
    sealed = unseal(str(tool[SEALED])) if SEALED in tool else None
    return tool if sealed is None else without_secrets(tool) | msgspec.json.decode(sealed)
