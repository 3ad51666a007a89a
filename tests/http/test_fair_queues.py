"""What one key has waiting does not delay another's: files that are indexed, background responses, batches.

Of the slots of an engine, each key has the same number of tokens, however long its answers are.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from antiphon.core.limits import CLIENT
from antiphon.run.documents import TextChunk
from tests.server import Running, running

SCRIPT = [{"output": "word ", "tokens": 10, "delay_ms": 2}]
MANY = 30


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[tuple[Running, httpx.AsyncClient, httpx.AsyncClient]]:
    """A server, with a client for each of its two keys."""
    async with (
        running(SCRIPT, api_key=("alice", "eve"), **options) as server,
        _client(server, "alice") as alice,
        _client(server, "eve") as eve,
    ):
        yield server, alice, eve


def _client(server: Running, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=f"{server.url}/v1", headers=headers, timeout=30)


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def attached(client: httpx.AsyncClient, count: int) -> str:
    """The path of a batch of so many files in a vector store."""
    ids = []
    for number in range(count):
        file = {"file": (f"{number}.txt", b"7 bytes")}
        sent = await client.post("/files", files=file, data={"purpose": "assistants"})
        ids.append(sent.json()["id"])
    store = await posted(client, "/vector_stores")
    batch = await posted(client, f"/vector_stores/{store['id']}/file_batches", file_ids=ids)
    return f"/vector_stores/{store['id']}/file_batches/{batch['id']}"


async def test_a_small_file_does_not_wait_for_the_files_of_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, read = asyncio.Event(), list[str]()

    async def slow(*_: object) -> list[TextChunk]:
        read.append(CLIENT.get())
        await go_on.wait()
        return [TextChunk("text", "text")]

    monkeypatch.setattr("antiphon.app.indexing.read_chunks", slow)
    async with asking() as (_, alice, eve):
        theirs = await attached(alice, MANY)
        mine = await attached(eve, 1)
        go_on.set()
        async with asyncio.timeout(30):
            for client, batch in ((eve, mine), (alice, theirs)):
                while (await client.get(batch)).json()["status"] == "in_progress":
                    await asyncio.sleep(0.01)
    first, second, third = read[:3]
    assert first == second != third
    assert set(read[3:]) == {first}


def background(client: httpx.AsyncClient) -> Awaitable[Any]:
    return posted(client, "/responses", model="scripted", input="Hi", background=True)


def batch(client: httpx.AsyncClient) -> Awaitable[Any]:
    message = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
    return posted(client, "/messages/batches", requests=[{"custom_id": "a", "params": message}])


@pytest.mark.parametrize(
    ("create", "path", "status", "ended"),
    [
        (background, "/responses", "status", "completed"),
        (batch, "/messages/batches", "processing_status", "ended"),
    ],
)
async def test_a_job_does_not_wait_for_the_jobs_of_another_key(
    create: Callable[[httpx.AsyncClient], Awaitable[Any]],
    path: str,
    status: str,
    ended: str,
) -> None:
    async with asking(jobs=1) as (_, alice, eve):
        theirs = [(await create(alice))["id"] for _ in range(MANY)]
        mine = (await create(eve))["id"]
        async with asyncio.timeout(30):
            while (await eve.get(f"{path}/{mine}")).json()[status] != ended:
                await asyncio.sleep(0)
        last = (await alice.get(f"{path}/{theirs[-1]}")).json()[status]
    assert last != ended


LONG, SHORT = 90, 10
"""The tokens of their answers."""


@pytest.mark.parametrize("stream", [False, True])
async def test_who_has_long_answers_gets_no_more_tokens(stream: bool) -> None:
    """In the time of an answer of one key, the other has as many tokens, in several answers."""
    script = [
        {"when": "long", "output": "word " * LONG, "split": 5, "delay_ms": 1},
        {"output": "word " * SHORT, "split": 5, "delay_ms": 1},
    ]
    answered = {"long": 0, "short": 0}

    async def ask(client: httpx.AsyncClient, what: str) -> None:
        while True:
            message = {"role": "user", "content": what}
            answer = await client.post(
                "/chat/completions", json={"model": "scripted", "messages": [message], "stream": stream}
            )
            assert answer.status_code == 200
            answered[what] += 1

    async with (
        running(
            script, api_key=("alice", "eve"), parallel=1, dialect="plain", model_name=("scripted",)
        ) as server,
        _client(server, "alice") as alice,
        _client(server, "eve") as eve,
    ):
        asking = [asyncio.create_task(ask(alice, "long")) for _ in range(4)]
        asking += [asyncio.create_task(ask(eve, "short")) for _ in range(4)]
        while answered["long"] < 8:
            await asyncio.sleep(0.01)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert answered["short"] >= 3 * answered["long"]
