"""Requests with structured output that end together, while their schemas are compiled, leave no process occupied."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from antiphon.engines.engine import Load
from antiphon.run.bounded import BoundedPool
from tests.run.support import until
from tests.server import Running, running

CHAT = "/v1/chat/completions"


def asked(title: str, **more: Any) -> dict[str, Any]:
    schema = {"title": title, "type": "object", "properties": {"a": {"type": "integer"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Hi"}],
        "response_format": response_format,
        **more,
    }


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """A server whose work on a schema with the title `endless` does not end."""
    work = BoundedPool._run

    async def run(pool: BoundedPool, job: Any) -> tuple[bool, Any]:
        if "endless" in str(job):
            await asyncio.Event().wait()
        return await work(pool, job)

    monkeypatch.setattr(BoundedPool, "_run", run)
    async with running([{"output": '{"a": 1}'}]) as server:
        yield server


def schemas(server: Running) -> Load:
    """Those that are compiled, and those that wait."""
    return server.app.permits["schemas"]


async def closed_by_clients(server: Running) -> None:
    body = json.dumps(asked("endless")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(6)]
    for writer in writers:
        writer.write(head.encode() + body)
    await until(lambda: (schemas(server).running, schemas(server).waiting) == (1, 5))
    for writer in writers:
        writer.transport.abort()


async def ended_by_deadlines(server: Running) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        asking = (http.post(CHAT, json=asked("endless", deadline_seconds=0.5)) for _ in range(4))
        for answer in await asyncio.gather(*asking):
            assert answer.json()["error"]["code"] == "deadline_exceeded"


async def closed_sockets(server: Running) -> None:
    schema = asked("endless")["response_format"]["json_schema"]["schema"]
    turn = {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}
    url = server.url.replace("http", "ws") + "/v1/responses"
    sockets = [await connect(url) for _ in range(3)]
    for socket in sockets:
        await socket.send(json.dumps({"type": "response.create", "model": "scripted", **turn}))
    await until(lambda: (schemas(server).running, schemas(server).waiting) == (1, 2))
    for socket in sockets:
        socket.transport.abort()


@pytest.mark.parametrize("end", [closed_by_clients, ended_by_deadlines, closed_sockets])
async def test_whatever_ends_together_the_next_is_answered(server: Running, end: Any) -> None:
    await end(server)
    await until(lambda: (schemas(server).running, schemas(server).waiting) == (0, 0))
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        answer = await http.post(CHAT, json=asked("short"))
    assert answer.json()["choices"][0]["message"]["content"] == '{"a": 1}'
