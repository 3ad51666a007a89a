"""A server that answers with bytes that are given to it, to see what becomes of answers that no good server gives."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

from msgspec import Struct, field

Write = Callable[[bytes], None]


class Asked(Struct):
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Canned(Struct):
    """A server at `url`. `answers` has for each path what is written.

    After an answer of `close`, the connection is closed; after one of `silent`, nothing more comes.
    """

    answers: dict[str, list[bytes]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    close: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    tls: SSLContext | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, until it is closed or one is to be answered by closing it."""
        self.connections += 1
        self.writers.add(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self.writers)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest if each)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = line.split(" ")
        is_json = "json" in headers.get("content-type", "")
        self.asked.append(Asked(method, path, headers, json.loads(raw) if is_json else raw or None))
        for piece in self.answers.get(path, [answer(404, {"detail": "Not Found"})]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if path in self.silent:
            await reader.read()  # until the client disconnects
            return False
        return path not in self.close


@asynccontextmanager
async def canned(answers: Mapping[str, list[bytes]], **options: Any) -> AsyncIterator[Canned]:
    """A server that gives these answers."""
    here = Canned(dict(answers), **options)
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0, ssl=here.tls)
    begins = "http://127.0.0.1" if here.tls is None else "https://localhost"
    here.url = f"{begins}:{server.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        server.close()
        for writer in here.writers:
            writer.close()
        while here.writers:
            await asyncio.sleep(0.001)


def answer(status: int, body: Any) -> bytes:
    """A whole answer."""
    raw = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(raw),
        raw,
    )


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def part(data: bytes) -> bytes:
    """A piece of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: Any) -> list[bytes]:
    """A stream of events: what is JSON, or bytes as they are."""
    lines = [
        each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() + b"\n\n"
        for each in events
    ]
    return [HEAD, *map(part, lines), END]
