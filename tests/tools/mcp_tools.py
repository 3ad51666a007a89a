"""Tools of an MCP server for tests, over the standard streams of a process that loads little else."""

import asyncio
import base64
import os
import sys
from contextlib import suppress
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolAnnotations,
)
from msgspec import Struct

from tests.media import WAV

LONG = "flood " * 50_000
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
PAGE = b"<!doctype html><p>All about <b>cats</b>.</p>"
STDIO = [sys.executable, "-m", "tests.tools.mcp_tools"]
"""The command of the server."""


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Told(Struct):
    """The requests that a server got: the names of the tools that were called, and the headers."""

    calls: list[str]
    headers: list[dict[str, str]]
    hanging: asyncio.Event


def server(told: Told | None = None) -> MCPServer:  # noqa: C901 - a list of tools
    """Tools that answer, fail, hang and flood."""
    made = MCPServer("test", instructions="For tests.")
    calls = told.calls if told else []

    @made.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        calls.append("add")
        return str(a + b)

    @made.tool()
    def fail() -> str:
        """Fails."""
        calls.append("fail")
        raise ValueError("It broke.")

    @made.tool()
    async def hang() -> str:
        """Never answers."""
        calls.append("hang")
        if told:
            told.hanging.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            calls.append("hang was cancelled")
            raise
        return "never"

    @made.tool()
    def flood() -> str:
        """Says too much."""
        return LONG

    @made.tool(name="look.at")
    def look() -> list[Any]:
        """Shows a picture, audio, a page and what is none of it."""
        return [
            TextContent(text="A cat:"),
            ImageContent(data=encoded(PIXEL), mime_type="image/png"),
            ImageContent(data=encoded(b"png"), mime_type="image/png"),
            ImageContent(data="?", mime_type="image/png"),
            AudioContent(data=encoded(WAV), mime_type="audio/wav"),
            EmbeddedResource(
                resource=BlobResourceContents(uri="cat://page", blob=encoded(PAGE), mime_type="text/html")
            ),
        ]

    counted: dict[str, int] = {}

    @made.tool()
    def count(ctx: Context) -> str:
        """Counts its calls."""
        counted["all"] = counted.get("all", 0) + 1
        return str(counted["all"])

    @made.tool()
    async def learn(ctx: Context) -> str:
        """Learns something new, and says so to clients of either kind."""
        made.add_tool(lambda: "new", name="fresh", description="Is new.")
        await ctx.notify_tools_changed()
        with suppress(MCPError, RuntimeError):
            await ctx.session.send_tool_list_changed()
        return "learned"

    @made.tool()
    def environment(name: str) -> str:
        """Returns a variable."""
        return os.environ.get(name, "(none)")

    @made.tool()
    def crash() -> str:
        """Ends the server."""
        os._exit(3)

    return made


if __name__ == "__main__":
    print("begun", file=sys.stderr, flush=True)
    server().run()
