"""A client of Ollama's API that checks everything that it gets: bodies, lines, errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx

from tests.apis.ollama.support import folded, read, timeless
from tests.http.api import prompt_of
from tests.server import NO_TLS, Running, running

Json = Any
"""What a body holds."""

CHAT, GENERATE = "/api/chat", "/api/generate"


class OllamaApi:
    """Asks a server as one client."""

    def __init__(self, http: httpx.AsyncClient, server: Running) -> None:
        self.http = http
        self.server = server

    @property
    def seen(self) -> Any:
        """The last generation that the engine was asked for."""
        return self.server.engine.seen[-1]

    @property
    def prompt(self) -> str:
        """The last prompt that the engine was given."""
        return prompt_of(self.server)

    async def post(self, path: str, body: Json, status: int = 200) -> Json:
        """The body of an answer, or of an error, which is nothing but a text."""
        response = await self.http.post(path, json=body)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        answer = response.json()
        if status >= 400:
            assert answer.keys() == {"error"}
            assert answer["error"]
        return answer

    async def get(self, path: str, status: int = 200) -> Json:
        response = await self.http.get(path)
        assert response.status_code == status, response.text
        return response.json()

    async def lines(self, path: str, body: Json) -> list[Json]:
        """The lines of a stream."""
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/x-ndjson"
        return read(response.content)

    async def _both(self, path: str, body: Json) -> Json:
        """The full answer. What a stream of it adds up to is the same."""
        full = timeless(await self.post(path, {**body, "stream": False}))
        assert timeless(folded(await self.lines(path, body))) == full
        return full

    async def chat(self, said: Json, **fields: Any) -> Json:
        """The answer to a conversation. A text is what the user says."""
        return await self._both(CHAT, chat(said, **fields))

    async def generate(self, prompt: str, **fields: Any) -> Json:
        """The answer to a prompt."""
        return await self._both(GENERATE, {"model": "scripted", "prompt": prompt, **fields})

    async def refused(self, path: str, body: Json, status: int = 400) -> str:
        """The error that this is refused with, streamed or not."""
        errors = [
            (await self.post(path, {"model": "scripted", **body, "stream": stream}, status))["error"]
            for stream in (False, True)
        ]
        assert errors[0] == errors[1]
        return errors[0]


def chat(said: Json, **fields: Any) -> dict[str, Any]:
    """A chat request. A text is what the user says."""
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return {"model": "scripted", "messages": messages, **fields}


@asynccontextmanager
async def ollama(
    script: Any, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[OllamaApi]:
    """A client of a server that plays this script."""
    async with (
        running(script, **options) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers, timeout=20) as http,
    ):
        yield OllamaApi(http, server)
