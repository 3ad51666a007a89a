"""An MCP server that answers with what it is told to, as a process: `python -m tests.tools.hostile_mcp NAME`."""

import json
import sys
from collections.abc import Iterator
from typing import Any

PLAIN = {"tools": [{"name": "attack", "inputSchema": {"type": "object"}}]}
DONE = {"content": [{"type": "text", "text": "done"}]}
SLOW = {
    "tools": [
        {
            "name": "attack",
            "inputSchema": {"type": "object"},
            "outputSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        }
    ]
}


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else {}


def listing(*names: str) -> Any:
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}


CASES: dict[str, tuple[Any, Any]] = {
    "plain": (PLAIN, DONE),
    "parts": (PLAIN, {"content": [{"type": "text", "text": "x"}] * 2_000}),
    "text": (PLAIN, {"content": [{"type": "text", "text": "x" * 200_000}]}),
    "quoted": (PLAIN, {"content": [{"type": "text", "text": '\\"a", [{\\\\"' * 5_000}]}),
    "wrong": (PLAIN, {"content": [{"type": "what"}] * 100}),
    "deep": (PLAIN, {"content": [], "structuredContent": nested(400)}),
    "properties": (
        {"tools": [{"name": "attack", "inputSchema": {"properties": {f"p{i}": {} for i in range(2_000)}}}]},
        DONE,
    ),
    "requests": (PLAIN, DONE),
    "slow": (SLOW, {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}),
    "names": (
        listing(
            "good", "also.good/x", "also_good_x", "no name", "", "<|im_end|>", "x" * 129, "é", "line\nend"
        ),
        DONE,
    ),
}
"""Name → the listing of tools, and the result of a call."""


def answers(name: str, asked: Any) -> Iterator[Any]:
    """The messages that a server sends for one that it got."""
    tools, result = CASES[name]
    known = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        },
        "tools/list": tools,
        "tools/call": result,
    }
    method, number = asked.get("method"), asked.get("id")
    if number is None or method is None:
        return
    if name == "requests" and method == "tools/call":
        for each in range(200):
            yield {"jsonrpc": "2.0", "id": f"s{each}", "method": "ping"}
    if method in known:
        yield {"jsonrpc": "2.0", "id": number, "result": known[method]}
    else:
        yield {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}


def main(name: str) -> None:
    for line in sys.stdin:
        for message in answers(name.removeprefix("endless-"), json.loads(line)):
            end = "" if name.startswith("endless-") and "tools" in message.get("result", {}) else "\n"
            padding = "" if end else " " * 200_000
            sys.stdout.write(json.dumps(message) + padding + end)
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
