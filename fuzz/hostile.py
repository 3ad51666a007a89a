"""The hostile server of `attacks.py`: one of models, with and without templates, and one of tools.

What it answers is named by the path: `/flood/v1/chat/completions`, `/texts/v1/completions`, `/parts/mcp`.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

MB = 1_000_000
CALL = {"index": 0, "id": "c1", "function": {"name": "attack", "arguments": "{}"}}


def event(data: Any) -> bytes:
    """An event of a stream."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def written(text: str) -> bytes:
    """A piece of an answer, for both kinds of servers."""
    return event({"choices": [{"index": 0, "text": text, "delta": {"content": text}}]})


def line() -> Iterator[bytes]:
    """A line of 62 MB, and no end."""
    yield b"data: "
    yield from [b"x" * MB] * 62


def flood() -> Iterator[bytes]:
    """Tokens without end, whatever was asked for."""
    while True:
        yield written("word ") * 10_000


def chunk() -> Iterator[bytes]:
    """One piece of text of 20 MB."""
    yield written("word " * 4 * MB)


def texts() -> Iterator[bytes]:
    """Pieces of text that are as long as a line may be."""
    for text in (
        "<tool_call> ``` ",
        "<think>\n</think> ",
        '<tool_call>{"name": "a", "arguments": {"',
        "<",
        "\n",
    ):
        yield written(text * (240_000 // len(text)))
    yield event({"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "stop"}]})
    yield b"data: [DONE]\n\n"


def lines() -> Iterator[bytes]:
    """Lines without anything in them, comments, and events without anything in them."""
    yield b"\n" * MB + b":\n" * (MB // 2) + b"data: {}\n\n" * (MB // 10)


def head() -> Iterator[bytes]:
    """Something that is no part of the body, for which the head of the answer has no end."""
    yield from [b"X: y\r\n" * (MB // 6)] * 30


MODELS = {each.__name__: each for each in (line, flood, chunk, texts, lines, head)}
"""What a model's server answers, by name."""


def tools(schema: Any) -> Any:
    """The listing of a tool, with the schema of its arguments."""
    return {"tools": [{"name": "attack", "inputSchema": schema}]}


PLAIN = tools({"type": "object"})
PROPERTIES = tools({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(60_000)}})
ENUM = tools({"type": "object", "properties": {"a": {"enum": [f"value {i}" for i in range(200_000)]}}})
ENUMS = tools({"type": "object", "properties": {f"p{i}": {"enum": [*range(3_000)]} for i in range(3)}})
MANY = {"tools": [{"name": f"t{i}", "inputSchema": {"type": "object"}} for i in range(30_000)]}
RESULT = {"content": [{"type": "text", "text": "done"}]}
PARTS = {"content": [{"type": "text", "text": "x"}] * 80_000}
WRONG = {"content": [{"type": "what", "resource": {"uri": "a:b", "text": ""}}] * 1_900}
"""Within the limits, and every part of it is wrong in many ways."""
ONE_TEXT = {"content": [{"type": "text", "text": 'a "b", ' * 400_000}]}
SAMPLING = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}

MCP: dict[str, tuple[Any, Any]] = {
    "parts": (PLAIN, PARTS),
    "wrong": (PLAIN, WRONG),
    "text": (PLAIN, ONE_TEXT),
    "properties": (PROPERTIES, RESULT),
    "enum": (ENUM, RESULT),
    "enums": (ENUMS, RESULT),
    "many": (MANY, RESULT),
    "sampling": (PLAIN, RESULT),
    "packed": (PLAIN, RESULT),
}
"""Name → its tools, and the results of calls."""


@cache
def padding() -> bytes:
    """A gigabyte of spaces, compressed."""
    return gzip.compress(b" " * 50 * MB, 1) * 20


class Handler(BaseHTTPRequestHandler):
    """Answers as the path says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.endswith("/v1/models"):
            self._answer({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "nobody"}]})
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, name, what, *_ = self.path.split("/")
        if what == "mcp":
            self._answer_tools(name, asked)
        elif not asked.get("messages") and not asked.get("prompt"):
            self._send(400, b"{}")
        else:
            self._stream(name, asked)

    do_DELETE = do_GET  # noqa: N815

    def _stream(self, name: str, asked: Any) -> None:
        """What a model's server answers; with tools, a call of them first."""
        called = asked.get("tools") and "messages" in asked and asked["messages"][-1]["role"] != "tool"
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        if name != "head":
            self.wfile.write(b"Connection: close\r\n\r\n")
        if called or name not in MODELS:
            said = {"tool_calls": [CALL]} if called else {"content": "done"}
            self.wfile.write(
                event({"choices": [{"delta": said, "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"
            )
        else:
            for piece in MODELS[name]():
                self.wfile.write(piece)
        self.close_connection = True

    def _answer_tools(self, name: str, asked: Any) -> None:
        method, (listing, result) = asked.get("method"), MCP[name]
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            },
            "tools/list": listing,
            "tools/call": result,
        }
        if "id" not in asked or method is None:
            self._send(202, b"")
        elif method not in results:
            self._answer({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}})
        else:
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": results[method]}
            requests = b""
            if method == "tools/call" and name == "sampling":
                requests = b"".join(event({"jsonrpc": "2.0", "id": i, **SAMPLING}) for i in range(2_000))
            if method == "tools/call" and name == "packed":
                body = json.dumps(answer).encode()
                self._send(200, gzip.compress(body) + padding(), "application/json", "gzip")
            else:
                self._send(200, requests + event(answer), "text/event-stream")

    def _answer(self, body: Any) -> None:
        self._send(200, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str = "text/plain", encoding: str = "identity") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", encoding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """Until the other side leaves, which it may at any time."""
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@cache
def url() -> str:
    """The URL of the server, which runs from the first time on."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
