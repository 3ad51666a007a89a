"""Antiphon's client of MCP servers, for MCP's conformance suite: it lists the tools at a URL, and calls each."""

import asyncio
import sys

import httpx2

from antiphon.core.limits import DEFAULTS
from antiphon.tools.mcp.connection import Network, Target
from antiphon.tools.mcp.servers import McpConnections

ARGUMENTS = {"a": 5, "b": 3}


async def main(url: str) -> None:
    """What a response with a tool of the type `mcp` does."""
    network = Network(httpx2.AsyncHTTPTransport(), httpx2.AsyncHTTPTransport())
    connections = McpConnections({}, network, DEFAULTS)
    target = Target("conformance", url)
    listing = await connections.listing(target, "")
    async with connections.lease(target, "") as lease:
        connection = await lease.connection()
        for tool in listing.tools:
            wanted = tool.input_schema.get("properties", {})
            await connection.call(tool.name, {name: ARGUMENTS[name] for name in wanted if name in ARGUMENTS})
    await connections.close()


asyncio.run(main(sys.argv[-1]))
