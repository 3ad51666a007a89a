"""A client of Chat Completions and Completions that checks all that it gets: bodies, chunks, errors."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx

from antiphon.apis.envelope import PresentationOptions
from tests.apis.chat.support import collected
from tests.openai_schema import validate
from tests.server import NO_TLS, Running, running

Json = Any
"""What a body holds."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_COMPONENTS = {
    "chat.completion": "CreateChatCompletionResponse",
    "chat.completion.chunk": "CreateChatCompletionStreamResponse",
    "text_completion": "CreateCompletionResponse",
    "chat.completion.deleted": "ChatCompletionDeleted",
}
"""The `object` of a body → what OpenAI calls it."""


class ChatApi:
    """Asks a server as one client."""

    def __init__(self, http: httpx.AsyncClient, server: Running) -> None:
        self.http = http
        self.server = server

    @property
    def seen(self) -> Any:
        """The last generation that the engine was asked for."""
        return self.server.engine.seen[-1]

    async def post(self, path: str, body: Json, status: int = 200, **headers: str) -> Json:
        response = await self.http.post(path, json=body, headers=headers)
        return _read(response, status)

    async def get(self, path: str, status: int = 200, **query: Any) -> Json:
        return _read(await self.http.get(path, params=query), status)

    async def delete(self, path: str, status: int = 200) -> Json:
        return _read(await self.http.delete(path), status)

    # Chat

    async def ask(self, said: Json, **fields: Any) -> Json:
        """The body of a full answer."""
        return await self.post(CHAT, chat(said, **fields))

    async def stream(self, said: Json, **fields: Any) -> list[Json]:
        """The chunks of a stream, which ends as it should."""
        return await self._streamed(CHAT, chat(said, **fields))

    async def choices(self, said: Json, **fields: Any) -> list[Json]:
        """The choices of the answer. What a stream of it adds up to is the same."""
        full = (await self.ask(said, **fields))["choices"]
        chunks = await self.stream(said, **fields)
        shown = PresentationOptions(
            logprobs=0 if fields.get("logprobs") else None, token_ids=bool(fields.get("return_token_ids"))
        )
        streamed = collected(chunks, shown)
        assert [_nameless(streamed[index]) for index in range(len(streamed))] == list(map(_nameless, full))
        return full

    async def choice(self, said: Json, **fields: Any) -> Json:
        """The only choice of the answer, streamed and not."""
        [choice] = await self.choices(said, **fields)
        return choice

    async def refused(self, said: Json, status: int = 400, **fields: Any) -> Json:
        """The error that this is refused with, streamed or not."""
        errors = [
            (await self.post(CHAT, chat(said, **fields, stream=stream), status))["error"]
            for stream in (False, True)
        ]
        assert errors[0] == errors[1]
        return errors[0]

    # Completions

    async def complete(self, prompt: Json, **fields: Any) -> Json:
        """The body of a full completion."""
        return await self.post(COMPLETIONS, completion(prompt, **fields))

    async def stream_of(self, prompt: Json, **fields: Any) -> list[Json]:
        """The chunks of a completion's stream."""
        return await self._streamed(COMPLETIONS, completion(prompt, **fields))

    async def not_completed(self, prompt: Json, **fields: Any) -> Json:
        """The error that a completion is refused with."""
        return (await self.post(COMPLETIONS, completion(prompt, **fields), 400))["error"]

    async def _streamed(self, path: str, body: Json) -> list[Json]:
        response = await self.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        *chunks, end = events(response.text)
        assert end == "[DONE]"
        return list(map(checked, chunks))


def events(text: str) -> list[Json]:
    """What a stream says, decoded; its end mark stays a text. Comments are passed over."""
    assert text.endswith("\n\n")
    said = [event for event in text.removesuffix("\n\n").split("\n\n") if not event.startswith(":")]
    assert all(event.startswith("data: ") for event in said)
    payloads = [event.removeprefix("data: ") for event in said]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def checked(body: Json) -> Json:
    """A body that is all that OpenAI says of its kind."""
    if body.get("object") in _COMPONENTS:
        validate(_COMPONENTS[body["object"]], body)
    return body


def _read(response: httpx.Response, status: int) -> Json:
    assert response.status_code == status, response.text
    body = response.json()
    if status >= 400:
        validate("ErrorResponse", body)
    return checked(body)


def _nameless(choice: Json) -> Json:
    """A choice without the ids of its calls, which are drawn."""
    message = choice["message"]
    calls = [{**call, "id": "?"} for call in message.get("tool_calls", ())]
    return {**choice, "message": message | ({"tool_calls": calls} if calls else {})}


def chat(said: Json, **fields: Any) -> dict[str, Any]:
    """A chat request. A text is what the user says."""
    messages = [user(said)] if isinstance(said, str) else said
    return {"model": "scripted", "messages": messages, **fields}


def completion(prompt: Json, **fields: Any) -> dict[str, Any]:
    """A request for a completion."""
    return {"model": "scripted", "prompt": prompt, **fields}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def function(name: str, parameters: Json = None, **more: Any) -> dict[str, Any]:
    """A tool of a chat request."""
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters or {"type": "object"}, **more},
    }


@asynccontextmanager
async def chatting(script: Any, **options: Any) -> AsyncIterator[ChatApi]:
    """A server with this script, and a client of it. `options` are those of `running`."""
    async with (
        running(script, **options) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=20) as http,
    ):
        yield ChatApi(http, server)
