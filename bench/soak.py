"""Checks a server for leaks while it answers: memory, file handles, threads, tasks, rows and files.

    python bench/soak.py --requests 10000 --seed 1

Starts `antiphon serve` with the scripted engine, an SQLite store, a shell and two keys, and sends it
requests of every kind in an order derived from the seed: each API, streamed and not, server tools,
background, conversations, files, batches, WebSockets; some clients disconnect in the middle. Clients delete
the objects that they have stored. After each round, when no request is running, the server is measured. The
table shows each round; the result is derived from regression lines through the rounds after the first
quarter, in which caches are filled. Exits with 1 if one of them rises by more than `MOST`, or if a request
failed.
"""

# ruff: noqa: D103 - the name of a kind describes it

import argparse
import asyncio
import json
import os
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import httpx2 as httpx
from msgspec import Struct
from websockets.asyncio.client import connect

from bench.servers import Server, running

MOST = {
    "memory": 20.0,
    "handles": 4.0,
    "threads": 4.0,
    "tasks": 4.0,
    "rows": 0.5,
    "files": 0.5,
    "processes": 1.0,
}
"""By how much each may rise, in all, over the rounds after the first quarter; memory in MB."""
ROUNDS = 16
CLIENTS = 16
"""Requests at a time."""
KEYS = ("soak-one", "soak-two")
QUIET_SECONDS = 60
"""Running requests must end within this number of seconds after the last request of a round."""
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
SCRIPT = [
    {"when": "<tool_response>", "output": "The tools have said what there is to say."},
    {"when": "Search", "output": CALL.format("file_search", '{"queries": ["how long do cats sleep"]}')},
    {"when": "Run", "output": CALL.format("shell", '{"commands": ["echo hello"]}')},
    {"when": "Count", "output": "one two ", "tokens": 200, "delay_ms": 1},
    {"when": "JSON", "output": '{"a": 1}'},
    {"output": "<think>Well.</think>Hello there, friend!"},
]

TABLES = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
SWEPT = """
    SELECT (SELECT count(*) FROM blobs WHERE expires_at = 0)
         + (SELECT count(*) FROM blob_pieces JOIN blobs ON blobs.id = blob_id WHERE expires_at = 0)
"""

Step = Callable[["Visitor"], Awaitable[None]]
KINDS: dict[str, Step] = {}


def kind(step: Step) -> Step:
    """Note a kind of request under its name."""
    KINDS[step.__name__] = step
    return step


class Visitor(Struct, frozen=True):
    """The sender of one request, and of those that follow from it, with one of the keys."""

    http: httpx.AsyncClient
    url: str
    key: str
    vectors: str
    random: random.Random

    async def send(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The answer, whose status must be a success."""
        response = await self.http.request(method, path, json=body, headers=self._headers, **more)
        response.raise_for_status()
        return response.json()

    async def post(self, path: str, **body: Any) -> Any:
        """The answer to this body."""
        return await self.send("POST", path, {"model": "scripted", **body})

    async def stream(self, path: str, *, leave: bool = False, **body: Any) -> str:
        """The answer, streamed, or its beginning: some pieces, after which the client disconnects."""
        heard = ""
        given = {"model": "scripted", "stream": True, **body}
        async with self.http.stream("POST", path, json=given, headers=self._headers) as response:
            if response.status_code != 200:
                await response.aread()
            response.raise_for_status()
            async for piece in response.aiter_text():
                heard += piece
                if leave and self.random.random() < 0.5:
                    break
        return heard

    async def delete(self, path: str) -> None:
        """Delete a stored object."""
        await self.send("DELETE", path)

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def id_in(heard: str) -> str:
    """The id of the response whose events begin so."""
    return "resp_" + heard.partition('"id":"resp_')[2].partition('"')[0]


@kind
async def chat(visitor: Visitor) -> None:
    await visitor.post("/chat/completions", messages=says("Hi"), n=visitor.random.randint(1, 3))


@kind
async def chat_stream(visitor: Visitor) -> None:
    heard = await visitor.stream("/chat/completions", messages=says("Count"), logprobs=True)
    assert heard.endswith("data: [DONE]\n\n"), heard[-200:]  # noqa: S101


@kind
async def chat_left(visitor: Visitor) -> None:
    await visitor.stream("/chat/completions", messages=says("Count"), leave=True)


@kind
async def chat_stored(visitor: Visitor) -> None:
    made = await visitor.post("/chat/completions", messages=says("Hi"), store=True, metadata={"a": "b"})
    await visitor.delete(f"/chat/completions/{made['id']}")


@kind
async def chat_schema(visitor: Visitor) -> None:
    properties = {f"a{visitor.random.randint(0, 10**6)}": {"type": "integer"}}
    schema = {"name": "answer", "schema": {"type": "object", "properties": properties}}
    form = {"type": "json_schema", "json_schema": schema}
    await visitor.post("/chat/completions", messages=says("JSON"), response_format=form)


@kind
async def completion(visitor: Visitor) -> None:
    await visitor.post("/completions", prompt="Hi", echo=True)


@kind
async def completion_stream(visitor: Visitor) -> None:
    await visitor.stream("/completions", prompt="Count", max_tokens=50)


@kind
async def message(visitor: Visitor) -> None:
    await visitor.post("/messages", messages=says("Hi"), max_tokens=100)


@kind
async def message_stream(visitor: Visitor) -> None:
    heard = await visitor.stream("/messages", messages=says("Count"), max_tokens=1000)
    assert "message_stop" in heard, heard[-200:]  # noqa: S101


@kind
async def message_batch(visitor: Visitor) -> None:
    params = {"model": "scripted", "messages": says("Hi"), "max_tokens": 20}
    requests = [{"custom_id": f"r{number}", "params": params} for number in range(3)]
    batch = await visitor.send("POST", "/messages/batches", {"requests": requests})
    while batch["processing_status"] != "ended":
        await asyncio.sleep(0.1)
        batch = await visitor.send("GET", f"/messages/batches/{batch['id']}")
    await visitor.delete(f"/messages/batches/{batch['id']}")


@kind
async def response(visitor: Visitor) -> None:
    first = await visitor.post("/responses", input="Hi")
    second = await visitor.post("/responses", input="Again", previous_response_id=first["id"])
    for each in (second, first):
        await visitor.delete(f"/responses/{each['id']}")


@kind
async def response_stream(visitor: Visitor) -> None:
    heard = await visitor.stream("/responses", input="Count")
    assert "response.completed" in heard, heard[-200:]  # noqa: S101
    await visitor.delete(f"/responses/{id_in(heard)}")


@kind
async def response_left(visitor: Visitor) -> None:
    heard = await visitor.stream("/responses", input="Count", leave=True)
    await deleted(visitor, id_in(heard))


@kind
async def response_background(visitor: Visitor) -> None:
    made = await visitor.post("/responses", input="Hi", background=True)
    await deleted(visitor, made["id"])


@kind
async def response_cancelled(visitor: Visitor) -> None:
    made = await visitor.post("/responses", input="Count", background=True)
    await visitor.send("POST", f"/responses/{made['id']}/cancel")
    await deleted(visitor, made["id"])


async def deleted(visitor: Visitor, name: str) -> None:
    """Delete a response, as soon as it has ended."""
    while (await visitor.send("GET", f"/responses/{name}"))["status"] in ("queued", "in_progress"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await visitor.delete(f"/responses/{name}")


@kind
async def response_searching(visitor: Visitor) -> None:
    tools = [{"type": "file_search", "vector_store_ids": [visitor.vectors]}]
    made = await visitor.post("/responses", input="Search", tools=tools)
    assert made["output"][0]["type"] == "file_search_call", made  # noqa: S101
    await visitor.delete(f"/responses/{made['id']}")


@kind
async def response_shell(visitor: Visitor) -> None:
    tools = [{"type": "shell", "environment": {"type": "container_auto"}}]
    heard = await visitor.stream("/responses", input="Run", tools=tools)
    assert "shell_call_output" in heard, heard  # noqa: S101
    await visitor.delete(f"/responses/{id_in(heard)}")


@kind
async def conversation(visitor: Visitor) -> None:
    item = {"type": "message", "role": "user", "content": "x" * visitor.random.randint(1, 5000)}
    made = await visitor.send("POST", "/conversations", {"items": [item]})
    answer = await visitor.post("/responses", input="Hi", conversation=made["id"])
    await visitor.send("GET", f"/conversations/{made['id']}/items")
    await visitor.delete(f"/responses/{answer['id']}")
    listed = await visitor.send("GET", f"/conversations/{made['id']}/items")
    for each in listed["data"]:
        await visitor.delete(f"/conversations/{made['id']}/items/{each['id']}")
    await visitor.delete(f"/conversations/{made['id']}")


@kind
async def file(visitor: Visitor) -> None:
    data = visitor.random.randbytes(visitor.random.randint(1, 300_000))
    form = {"files": {"file": ("a.bin", data)}, "data": {"purpose": "user_data"}}
    made = await visitor.send("POST", "/files", **form)
    await visitor.delete(f"/files/{made['id']}")


@kind
async def wrong(visitor: Visitor) -> None:
    body = {"model": "scripted", "messages": says("Hi"), "temperature": "hot"}
    answer = await visitor.http.post("/chat/completions", json=body, headers={"x-api-key": visitor.key})
    assert answer.status_code == 400, answer.text  # noqa: S101


@kind
async def nobody(visitor: Visitor) -> None:
    answer = await visitor.http.get("/models", headers={"x-api-key": "another"})
    assert answer.status_code == 401, answer.text  # noqa: S101


@kind
async def socket(visitor: Visitor) -> None:
    url, previous = visitor.url.replace("http", "ws") + "/responses", None
    leave = visitor.random.random() < 0.3
    async with connect(url, additional_headers={"authorization": f"Bearer {visitor.key}"}) as connection:
        for _ in range(visitor.random.randint(1, 3)):
            turn = {"type": "response.create", "model": "scripted", "store": False, "input": "Hi"}
            await connection.send(json.dumps(turn | ({"previous_response_id": previous} if previous else {})))
            if leave:
                await connection.recv()
                return
            event: dict[str, Any] = {"type": ""}
            while event["type"] not in ("response.completed", "error"):
                event = json.loads(await connection.recv())
            assert event["type"] == "response.completed", event  # noqa: S101
            previous = event["response"]["id"]


class Sample(Struct, frozen=True):
    """The server after this number of requests, when no request is running."""

    requests: int
    memory: float
    handles: int
    threads: int
    tasks: int
    processes: int
    rows: int
    files: int


async def sample(server: Server, folder: Path, http: httpx.AsyncClient, requests: int) -> Sample:
    """Wait until no request is running, and measure."""
    deadline = time.monotonic() + QUIET_SECONDS
    while (values := await read_metrics(http))["under way"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"After {QUIET_SECONDS} s there is still something under way: {values}")
        await asyncio.sleep(0.2)
    await asyncio.sleep(1)  # for work after the end of an answer
    process = Path(f"/proc/{server.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Sample(
        requests,
        round(int(status["VmRSS"].split()[0]) / 1000, 1),
        len([*(process / "fd").iterdir()]),
        int(status["Threads"]),
        int((await read_metrics(http))["tasks"]),
        len((process / "task" / str(server.pid) / "children").read_text().split()),
        count_rows(folder / "store.db"),
        count_files(folder),
    )


async def read_metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """How much is under way, and how many tasks there are."""
    answer = await http.get("/../metrics", headers={"authorization": f"Bearer {KEYS[0]}"})
    answer.raise_for_status()
    under_way = ("vllm:num_requests_running", "vllm:num_requests_waiting", "antiphon:background_running")
    found = {"under way": 0.0, "tasks": 0.0}
    for line in answer.text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(under_way):
            found["under way"] += float(value)
        elif name == "antiphon:tasks":
            found["tasks"] = float(value)
    return found


def count_files(folder: Path) -> int:
    """The files in a folder and those below it."""
    return sum(path.is_file() for path in folder.rglob("*"))


def count_rows(path: Path) -> int:
    """The rows of all tables of an SQLite store, without deleted content that waits for the sweep."""
    with closing(sqlite3.connect(path)) as database:
        count: int = -database.execute(SWEPT).fetchone()[0]
        for (name,) in database.execute(TABLES).fetchall():
            count += database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608
        return count


@asynccontextmanager
async def prepared(folder: Path) -> AsyncIterator[tuple[Server, httpx.AsyncClient, dict[str, str]]]:
    """A server, a client of it, and for each key a vector store that has a file."""
    script = folder / "script.jsonl"
    script.write_text("\n".join(map(json.dumps, SCRIPT)))
    options = ["--engine", "scripted", "--script", str(script), "--store", f"sqlite:///{folder / 'store.db'}"]
    options += ["--shell", "sh", "--port", "0", "--log-level", "error", "--dialect", "hermes"]
    options += [option for key in KEYS for option in ("--api-key", key)]
    os.environ["XDG_DATA_HOME"] = os.environ["TMPDIR"] = str(folder)
    with running("antiphon", ("-m", "antiphon", "serve", *options)) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
            vectors = {}
            for key in KEYS:
                visitor = Visitor(http, url, key, "", random.Random())  # noqa: S311
                made = await visitor.send("POST", "/vector_stores", {"name": "pets"})
                cats = {"file": ("cats.md", b"Cats sleep for sixteen hours a day.")}
                uploaded = await visitor.send("POST", "/files", files=cats, data={"purpose": "assistants"})
                path = f"/vector_stores/{made['id']}/files"
                attached = await visitor.send("POST", path, {"file_id": uploaded["id"]})
                while attached["status"] == "in_progress":
                    await asyncio.sleep(0.1)
                    attached = await visitor.send("GET", f"{path}/{uploaded['id']}")
                vectors[key] = made["id"]
            yield server, http, vectors


async def soak(folder: Path, requests: int, seed: int) -> tuple[list[Sample], Counter[str], list[str]]:
    """The samples, the number of requests of each kind, and the failures."""
    chance, sent, failed = random.Random(seed), Counter[str](), list[str]()  # noqa: S311
    async with prepared(folder) as (server, http, vectors):

        async def one(name: str, visitor: Visitor) -> None:
            async with slots:
                try:
                    async with asyncio.timeout(120):
                        await KINDS[name](visitor)
                except Exception as error:
                    failed.append(f"{name}: {type(error).__name__}: {error}")

        slots = asyncio.Semaphore(CLIENTS)
        samples = [await sample(server, folder, http, 0)]
        show(Sample.__struct_fields__)
        show(samples[0])
        for number in range(1, ROUNDS + 1):
            names = chance.choices([*KINDS], k=requests * number // ROUNDS - sent.total())
            sent.update(names)
            async with asyncio.TaskGroup() as group:
                for name in names:
                    key = chance.choice(KEYS)
                    own = random.Random(chance.random())  # noqa: S311
                    group.create_task(
                        one(name, Visitor(http, str(http.base_url).rstrip("/"), key, vectors[key], own))
                    )
            samples.append(await sample(server, folder, http, sent.total()))
            show(samples[-1])
    return samples, sent, failed


def show(cells: Any) -> None:
    """Print a line of the table."""
    cells = cells if isinstance(cells, tuple) else [getattr(cells, name) for name in Sample.__struct_fields__]
    print("".join(f"{cell:>11}" for cell in cells), flush=True)


def rises(samples: Sequence[Sample]) -> dict[str, float]:
    """By how much each figure rises, by a line through the samples after the first quarter."""
    steady = samples[len(samples) // 4 :]
    numbers = [each.requests for each in steady]
    lines = {name: linear_regression(numbers, [getattr(each, name) for each in steady]) for name in MOST}
    return {name: line.slope * (numbers[-1] - numbers[0]) for name, line in lines.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun = time.monotonic()
    with TemporaryDirectory(prefix="antiphon-soak-") as folder:
        samples, sent, failed = asyncio.run(soak(Path(folder), arguments.requests, arguments.seed))
    print(f"\n{sent.total()} requests in {time.monotonic() - begun:.0f} s:", dict(sorted(sent.items())))
    flat = True
    for name, rise in rises(samples).items():
        holds = rise <= MOST[name]
        flat &= holds
        per = rise / (samples[-1].requests - samples[len(samples) // 4].requests) * 1000
        print(f"{name:10} {rise:+8.2f} in all, {per:+8.3f} per 1000  {'flat' if holds else 'not flat  <--'}")
    for failure, count in Counter(failed).most_common(20):
        print(f"failed {count} x {failure}")
    return int(not flat or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
