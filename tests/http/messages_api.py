"""A client of Messages that checks everything that it gets: bodies, events, errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message

from tests.apis.messages.support import ANTHROPIC, check_stream, essence, request
from tests.http.api import prompt_of
from tests.openai_schema import validate
from tests.response_invariants import read_events
from tests.server import NO_TLS, Running, running

Json = Any
"""What a body holds."""


class MessagesApi:
    """Asks a server as one client."""

    def __init__(self, http: httpx.AsyncClient, server: Running) -> None:
        self.http = http
        self.server = server

    @property
    def prompt(self) -> str:
        """The last prompt that the engine was given."""
        return prompt_of(self.server)

    async def post(self, path: str, body: Json, status: int = 200) -> Json:
        response = await self.http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    async def full(self, messages: Json = "Hi", **fields: Any) -> Json:
        """The body of a full answer."""
        body = await self.post("/v1/messages", request(messages, **fields))
        validate("Message", body, ANTHROPIC)
        return body

    async def stream(self, messages: Json = "Hi", **fields: Any) -> list[Json]:
        """The events of a stream, in order."""
        response = await self.http.post("/v1/messages", json=request(messages, **fields, stream=True))
        assert response.status_code == 200, response.text
        return check_stream(read_events(response.content))

    async def ask(self, messages: Json = "Hi", **fields: Any) -> Json:
        """A full answer. A stream of it adds up to the same, but for ids."""
        body, events = await self.full(messages, **fields), await self.stream(messages, **fields)
        snapshot, buffers = None, {}
        for event in events:
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
        assert snapshot is not None
        mine = Message.model_validate(body).to_dict(mode="json")
        assert _nameless(snapshot.to_dict(mode="json")) == _nameless(mine)
        return body

    async def refused(self, messages: Json = "Hi", status: int = 400, **fields: Any) -> Json:
        """The error that this is refused with, streamed or not."""
        errors = []
        for stream in (False, True):
            body = await self.post("/v1/messages", request(messages, stream=stream) | fields, status)
            validate("ErrorResponse", body, ANTHROPIC)
            errors.append(body["error"])
        assert errors[0] == errors[1]
        return errors[0]


def _nameless(message: Json) -> Json:
    """A message without ids, which are drawn."""
    plain = essence(message) | {"id": ""}
    drawn = ("id", "tool_use_id")
    plain["content"] = [{k: v for k, v in block.items() if k not in drawn} for block in plain["content"]]
    return plain


@asynccontextmanager
async def asking(
    script: Any, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[MessagesApi]:
    """A client of a server that plays this script."""
    async with (
        running(script, **options) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers, timeout=20) as http,
    ):
        yield MessagesApi(http, server)


def texts(message: Json) -> str:
    """What a message says."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")
