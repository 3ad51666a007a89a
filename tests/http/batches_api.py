"""A client of Batches that checks what it gets with the types of openai-python, which are strict here."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
from openai.types import Batch

from tests.server import NO_TLS, Running, running

Json = Any
"""What a body holds."""

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def body(said: str = "Hi", **fields: Any) -> Json:
    """A request of Chat Completions."""
    return {"model": "scripted", "messages": [{"role": "user", "content": said}], **fields}


def line(custom_id: str, request: Json = None, url: str = CHAT, **fields: Any) -> Json:
    """A line of a file."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": request or body(), **fields}


def lines_of(*lines: Json) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


class BatchesApi:
    """Asks a server as one client."""

    def __init__(self, http: httpx.AsyncClient, server: Running) -> None:
        self.http = http
        self.server = server

    async def post(self, path: str, content: Json = None, status: int = 200) -> Json:
        response = await self.http.post(path, json=content)
        assert response.status_code == status, response.text
        return response.json()

    async def get(self, path: str, status: int = 200, **query: Any) -> Json:
        response = await self.http.get(path, params=query)
        assert response.status_code == status, response.text
        return response.json()

    async def uploaded(self, content: bytes, purpose: str = "batch") -> str:
        """The id of a new file."""
        sent = await self.http.post(
            "/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": purpose}
        )
        assert sent.status_code == 200, sent.text
        return str(sent.json()["id"])

    async def create(self, content: bytes, endpoint: str = CHAT, status: int = 200, **fields: Any) -> Json:
        """A new batch of the lines of a new file."""
        file = await self.uploaded(content)
        return await self.create_of(file, endpoint, status, **fields)

    async def create_of(self, file: str, endpoint: str = CHAT, status: int = 200, **fields: Any) -> Json:
        """A new batch of the lines of a file."""
        wanted = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h", **fields}
        created = await self.post("/v1/batches", wanted, status)
        return checked(created) if status == 200 else created

    async def batch(self, batch: Json) -> Json:
        """A batch as it is now."""
        return checked(await self.get(f"/v1/batches/{batch['id']}"))

    async def ended(self, batch: Json) -> Json:
        """A batch, once it has ended."""
        async with asyncio.timeout(30):
            while (now := await self.batch(batch))["status"] not in ENDED:
                await asyncio.sleep(0.005)
        return now

    async def run(self, *lines: Json, endpoint: str = CHAT, **fields: Any) -> Json:
        """A batch of these lines that has ended."""
        return await self.ended(await self.create(lines_of(*lines), endpoint, **fields))

    async def results(self, file_id: str | None) -> dict[str, Json]:
        """The lines of a file with results, by `custom_id`; none if there is no file."""
        if file_id is None:
            return {}
        content = await self.http.get(f"/v1/files/{file_id}/content")
        assert content.status_code == 200, content.text
        read = [json.loads(each) for each in content.text.splitlines()]
        found = {each["custom_id"]: each for each in read}
        assert len(found) == len(read)
        for each in read:
            assert each["id"].startswith("batch_req_")
            assert set(each) == {"id", "custom_id", "response", "error"}
        return found

    async def answers(self, batch: Json) -> dict[str, Json]:
        """The bodies of the answers of a batch."""
        found = await self.results(batch["output_file_id"])
        assert all(each["response"]["status_code"] == 200 for each in found.values())
        return {custom_id: each["response"]["body"] for custom_id, each in found.items()}

    async def errors(self, batch: Json) -> dict[str, Json]:
        """The status and the error of each line that failed."""
        found = await self.results(batch["error_file_id"])
        return {
            custom_id: (each["response"]["status_code"], each["response"]["body"]["error"])
            if each["response"]
            else each["error"]["code"]
            for custom_id, each in found.items()
        }


def checked(batch: Json) -> Json:
    """A batch whose fields have the types that openai-python knows."""
    Batch.model_validate(batch, strict=True)
    counts = batch["request_counts"]
    assert counts["completed"] + counts["failed"] <= counts["total"]
    return batch


def texts(answers: dict[str, Json]) -> dict[str, str]:
    """What chat completions say, by the id of their line."""
    return {custom_id: each["choices"][0]["message"]["content"] for custom_id, each in answers.items()}


@asynccontextmanager
async def asking(script: Iterable[Json], key: str | None = None, **options: Any) -> AsyncIterator[BatchesApi]:
    """A server, and a client of it."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with (
        running(script, **options) as server,  # type: ignore[arg-type]
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers, timeout=60) as http,
    ):
        yield BatchesApi(http, server)
