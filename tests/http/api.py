"""A client of Responses and Conversations that checks everything that it gets: bodies, events, errors."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2 as httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.openai_schema import (
    OPEN_RESPONSES,
    OPENAI_RESPONSES,
    OWN_EVENTS,
    event_components,
    validate,
    validate_event,
)
from tests.response_invariants import check, read_sse
from tests.server import NO_TLS, Running

Json = Any
"""What a body holds."""

_COMPONENTS = {
    "response": {OPENAI_RESPONSES: "Response", OPEN_RESPONSES: "ResponseResource"},
    "response.compaction": {OPENAI_RESPONSES: "CompactResource", OPEN_RESPONSES: "CompactResource"},
    "response.input_tokens": {OPENAI_RESPONSES: "TokenCountsResource"},
    "conversation": {OPENAI_RESPONSES: "ConversationResource"},
    "conversation.deleted": {OPENAI_RESPONSES: "DeletedConversationResource"},
}
"""The `object` of a body → what each specification calls it."""


_OPEN_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output", "compaction"})
"""The items that Open Responses knows. OpenAI knows more, and Open Responses lets others be there."""


def check_body(body: Json) -> Json:
    """A body that is all that the specifications say of its kind."""
    if body != {"id": body.get("id"), "object": "response", "deleted": True}:  # which has no component
        for spec, component in _COMPONENTS.get(body.get("object"), {}).items():
            validate(component, _without_citations(_known(body)) if spec == OPEN_RESPONSES else body, spec)
    return body


def check_event(payload: bytes) -> None:
    """An event that is what those specifications say that know it; one knows it at least."""
    event = json.loads(payload)
    type_ = event["type"]
    if type_ in OWN_EVENTS:
        return
    knowing = [spec for spec in (OPENAI_RESPONSES, OPEN_RESPONSES) if type_ in event_components(spec)]
    assert knowing, f"no such event: {type_}"
    for spec in knowing:
        if spec == OPENAI_RESPONSES:
            validate_event(event, spec)
        elif event.get("item", {"type": "message"})["type"] in _OPEN_ITEMS and _open(event.get("annotation")):
            known = event | {"response": _known(event["response"])} if "response" in event else event
            validate_event(_without_citations(known), spec)


def _open(annotation: Json) -> bool:
    """Open Responses knows no citations but of web pages."""
    return annotation is None or annotation["type"] == "url_citation"


def _without_citations(value: Json) -> Json:
    """The same without the annotations that Open Responses does not know."""
    if isinstance(value, list):
        return [_without_citations(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _without_citations(each) for name, each in value.items()}
    return (
        found | {"annotations": [*filter(_open, found["annotations"])]} if "annotations" in found else found
    )


def _known(body: Json) -> Json:
    """What Open Responses knows of a body."""
    tools = [tool for tool in body.get("tools", ()) if tool["type"] == "function"]
    output = [item for item in body.get("output", ()) if item["type"] in _OPEN_ITEMS]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice["type"] not in ("function", "allowed_tools"):
        choice = "auto"
    known = {"tools": tools, "output": output, "tool_choice": choice}
    return body | {name: value for name, value in known.items() if name in body}


def check_stream(payloads: list[bytes]) -> Json:
    """The response that a stream ends with. Every event is checked, and their order."""
    for payload in payloads:
        check_event(payload)
    return check_body(check(payloads))


class Api:
    """Asks a server as one client, with its own key."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(self, path: str, body: Json, status: int = 200) -> Json:
        return _read(await self.http.post(path, json=body), status)

    async def get(self, path: str, status: int = 200, **query: Any) -> Json:
        return _read(await self.http.get(path, params=query), status)

    async def delete(self, path: str, status: int = 200) -> Json:
        return _read(await self.http.delete(path), status)

    async def create(self, given: Json, **fields: Any) -> Json:
        """The response to this input."""
        return await self.post("/responses", ask(given, **fields))

    async def refused(self, given: Json, status: int = 400, **fields: Any) -> Json:
        """The error that this input is refused with, streamed or not."""
        errors = [
            (await self.post("/responses", ask(given, **fields, stream=stream), status))["error"]
            for stream in (False, True)
        ]
        assert errors[0] == errors[1]
        return errors[0]

    async def stream(self, given: Json, **fields: Any) -> list[bytes]:
        """The events of the response to this input."""
        response = await self.http.post("/responses", json=ask(given, **fields, stream=True))
        assert response.status_code == 200, response.text
        return read_sse(response.content)

    async def streamed(self, given: Json, **fields: Any) -> Json:
        """The response that the stream ends with."""
        return check_stream(await self.stream(given, **fields))

    async def events(self, response_id: str, **query: Any) -> list[bytes]:
        """The events of a stored response."""
        response = await self.http.get(f"/responses/{response_id}", params={"stream": "true", **query})
        assert response.status_code == 200, response.text
        return read_sse(response.content)

    async def conversation(self, *items: Json, **fields: Any) -> str:
        """The path of a new conversation."""
        body = await self.post("/conversations", {"items": [*items], **fields})
        return f"/conversations/{body['id']}"

    async def finished(self, response_id: str) -> Json:
        """A response, once it has ended."""
        async with asyncio.timeout(10):
            while (response := await self.get(f"/responses/{response_id}"))["status"] in _RUNNING:
                await asyncio.sleep(0.01)
        return response

    async def texts(self, path: str, **query: Any) -> list[str]:
        """The texts of a list of messages, in its order."""
        items = (await self.get(path, **query))["data"]
        return [part["text"] for item in items for part in item["content"]]


_RUNNING = ("queued", "in_progress")


def ask(given: Json, **fields: Any) -> dict[str, Any]:
    """A request for a response."""
    return {"model": "scripted", "input": given, **fields}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def text_of(response: Mapping[str, Any]) -> str:
    """All that is said in a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def items_of(response: Mapping[str, Any], type_: str) -> list[Json]:
    """The items of a type in the output of a response."""
    return [item for item in response["output"] if item["type"] == type_]


def prompt_of(server: Running) -> str:
    """The last prompt that the engine was given."""
    text: str = server.engine.seen[-1].prompt.text
    return text


async def read_some(api: Api, response_id: str) -> None:
    """Read a running response until it has said something."""
    async with api.http.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and "output_text.delta" in line:
                return


def rows(path: Path) -> dict[str, int]:
    """How much each table of an SQLite store holds."""
    with closing(sqlite3.connect(path)) as database:
        found = database.execute(
            "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        )
        tables = [
            name for (name,) in found if not name.startswith("sqlite_")
        ]  # an index has tables of its own
        counts = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}  # noqa: S608
        # A counter stays where there is nothing to count.
        counts["usage"] = database.execute("SELECT count(*) FROM usage WHERE bytes != 0").fetchone()[0]
    del counts["alembic_version"]
    return counts


@asynccontextmanager
async def client(server: Running, key: str | None = None) -> AsyncIterator[Api]:
    """A client of the server."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        verify=NO_TLS, base_url=f"{server.url}/v1", headers=headers, timeout=20
    ) as http:
        yield Api(http)


def sdk(server: Running, key: str = "alice") -> AsyncOpenAI:
    """OpenAI's client of the server. It does not try again what has failed."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS)
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, http_client=http)


def _read(response: httpx.Response, status: int) -> Json:
    assert response.status_code == status, response.text
    body = response.json()
    if status >= 400:
        validate("ErrorResponse", body, OPENAI_RESPONSES)
        assert list(body) == ["error"]
        assert list(body["error"]) == ["message", "type", "param", "code"]
        assert body["error"]["message"]
    return check_body(body)
