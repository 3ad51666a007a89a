"""A hostile MCP server at a URL, whose calls have effects: it loses answers, floods and talks nonsense.

In some simulations it takes the place of the tool in `tools.py`: servers reach it by their client for MCP.
Whatever it does, a call has its effect at most once, and the answer that asked for it goes on.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx2

from antiphon.core.limits import Limits
from antiphon.tools.mcp.connection import Network
from antiphon.tools.mcp.tool import Mcp
from simulation.loop import PROCESS, Process
from simulation.network import LATENCY
from simulation.tools import HOST, SCHEMA, Effects

LIMITS = Limits(mcp_seconds=5, mcp_connect_seconds=3, mcp_values=500, mcp_messages=50)
WAYS = {
    "plain": 4,
    "events": 4,
    "lost before": 1,
    "lost after": 2,
    "hangs": 1,
    "twice": 1,
    "others": 1,
    "nonsense": 1,
    "huge": 1,
    "compressed": 1,
    "asks": 1,
    "endless": 1,
    "status": 1,
    "error": 1,
}
"""How a call is answered, and how often."""
FLOOD = 300
"""Messages of a flood. Nobody may read all of them."""


class McpServer(httpx2.AsyncBaseTransport):
    """The server, as the connection to it that all servers of a simulation share."""

    def __init__(self, seed: int, effects: Effects) -> None:
        self._rng = Random(f"mcp server {seed}")
        self._effects = effects
        self._open: list[_Body] = []

    def tool(self) -> Mcp:
        """The tool for it, of one server of the simulation."""
        return Mcp(Network(self, self), hosts=(HOST,), limits=LIMITS)

    def open(self, process: Process) -> int:
        """The number of answers that a process reads."""
        return sum(body.process is process for body in self._open)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a message."""
        await self._wait(2 * LATENCY)
        if request.method != "POST":  # it has no sessions, and nothing to say by itself
            return httpx2.Response(405)
        asked = json.loads(await request.aread())
        if "method" not in asked or "id" not in asked:
            return httpx2.Response(202)
        match asked["method"]:
            case "initialize":
                return self._json(asked, _BEGIN)
            case "tools/list":
                return self._json(asked, {"tools": [{"name": "act", "inputSchema": SCHEMA}]})
            case "tools/call":
                return await self._call(asked, asked["params"]["arguments"]["name"])
        return httpx2.Response(200, json=_message(asked["id"], error={"code": -32601, "message": "No."}))

    async def _call(self, asked: Any, name: str) -> httpx2.Response:
        [way] = self._rng.choices([*WAYS], [*WAYS.values()])
        if way == "lost before":
            raise httpx2.ReadError("It is lost.")
        await self._effects.cause(name)
        result = {"content": [{"type": "text", "text": f"{name} is done"}]}
        match way:
            case "lost after":
                raise httpx2.ReadError("It is lost.")
            case "plain":
                return self._json(asked, result)
            case "huge":
                return self._json(asked, {"content": result["content"] * LIMITS.mcp_values})
            case "compressed":
                return self._json(asked, result, {"content-encoding": "gzip"})
            case "status":
                return httpx2.Response(self._rng.choice((400, 401, 404, 429, 500)))
            case "error":
                return httpx2.Response(200, json=_message(asked["id"], error={"code": 1, "message": "No."}))
        body = _Body(self._events(asked, way, _message(asked["id"], result=result)), self._open)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    async def _events(self, asked: Any, way: str, message: Any) -> AsyncIterator[bytes]:
        match way:
            case "hangs":
                await asyncio.get_running_loop().create_future()
            case "nonsense":
                yield b'data: {"jsonrpc": [\n\n'
            case "others":
                for other in ("x", 10**9, None):
                    yield _event(_message(other, result=message["result"]))
            case "asks" | "endless":
                for each in range(FLOOD if way == "endless" else 20):
                    await self._wait(0.01)
                    yield _event({"jsonrpc": "2.0", "id": f"ask {each}", "method": "ping"})
                self._effects.require(way == "asks", "a flood of an MCP server is read to its end")
        raw = _event(message)
        for at in range(0, len(raw), size := self._rng.choice((7, 64, 10_000))):
            yield raw[at : at + size]
        if way == "twice":
            yield raw

    def _json(self, asked: Any, result: Any, headers: dict[str, str] | None = None) -> httpx2.Response:
        encoded = json.dumps(_message(asked["id"], result=result)).encode()
        body = _Body(_pieces(encoded), self._open)
        return httpx2.Response(
            200, headers={"content-type": "application/json", **(headers or {})}, stream=body
        )

    async def _wait(self, most: float) -> None:
        await asyncio.sleep(self._rng.random() * most)


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, which is open until it is closed."""

    def __init__(self, pieces: AsyncIterator[bytes], opened: "list[_Body]") -> None:
        self._pieces = pieces
        self._opened = opened
        self.process = PROCESS.get()
        opened.append(self)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        if self in self._opened:
            self._opened.remove(self)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _message(number: Any, **more: Any) -> Any:
    return {"jsonrpc": "2.0", "id": number, **more}


def _event(message: Any) -> bytes:
    return b"event: message\ndata: %b\n\n" % json.dumps(message).encode()


_BEGIN = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "effects", "version": "1"},
}
