"""An API that is one module and one row of the routes: its conventions are its own, and those of others stay theirs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest
from msgspec.structs import replace
from starlette.routing import BaseRoute

from antiphon.http.app import ROUTES
from antiphon.http.openapi import document
from antiphon.http.routes import answers
from tests.http.toy_api import ROW, TOY, Line, Talk, create
from tests.server import NO_TLS, running

PATIENCE = 0.05
SCRIPT: list[dict[str, Any]] = [
    {"when": "slow", "output": "one two", "delay_ms": 4 * PATIENCE * 1000},
    {"output": "Hello there!"},
]
PATH = "/toy/scripted/talk"


@asynccontextmanager
async def talking(row: BaseRoute = ROW, **given: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with this row."""
    async with (
        running(SCRIPT, routes=[*ROUTES, row], keep_alive=PATIENCE, **given) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        yield http


def talk(text: str, **fields: Any) -> bytes:
    return json.dumps({"said": [{"role": "user", "content": text}], **fields}).encode()


@pytest.mark.parametrize("head", [{}, {"content-type": "application/x-www-form-urlencoded"}])
async def test_its_streams_have_its_own_media_type_and_form(head: dict[str, str]) -> None:
    async with talking() as http:
        streamed = await http.post(PATH, content=talk("hi"), headers=head)
        whole = await http.post(PATH, content=talk("hi", stream=False), headers=head)
    assert (streamed.status_code, streamed.headers["content-type"]) == (200, "application/x-ndjson")
    *texts, last = map(json.loads, streamed.text.splitlines())
    assert "".join(line["text"] for line in texts) == "Hello there!"
    assert last == {"text": "", "done": True}
    assert whole.json() == {"text": "Hello there!", "done": True}


async def test_it_keeps_connections_alive_in_its_own_way() -> None:
    async with talking() as http:
        lines = (await http.post(PATH, content=talk("slow"))).text.split("\n")
        assert lines[0] == ""
        assert "".join(json.loads(line)["text"] for line in lines if line) == "one two"
    async with talking(answers(ROW.path, Talk, create, Line, replace(TOY, keep_alive=b""))) as http:
        response = await http.post(PATH, content=talk("slow"))
        assert all(response.text.splitlines())


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        (PATH, talk("hi", options={"temperature": -1}), 400, "options/temperature"),
        (PATH, talk("hi", options={"min_tokens": 9, "num_predict": 3}), 400, "options/min_tokens"),
        (PATH, b'{"said": [{"role": "nobody", "content": ""}]}', 400, "said[0]/role"),
        ("/toy/nothing/talk", talk("hi"), 404, "model"),
        ("/toy/nothing", talk("hi"), 404, None),
        (PATH, b"no JSON", 400, None),
    ],
)
async def test_its_errors_have_its_own_form_and_names(
    path: str, body: bytes, status: int, field: str
) -> None:
    async with talking() as http:
        refused = await http.post(path, content=body)
        assert (refused.status_code, refused.json()["field"]) == (status, field)
        if field == "options/min_tokens":
            assert refused.json()["reason"].startswith("'options.min_tokens' is 9")


async def test_the_others_keep_their_conventions() -> None:
    async with talking() as http:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "slow"}], "max_tokens": 9}
        chat, messages = [
            await http.post(path, json={**body, "stream": True})
            for path in ("/v1/chat/completions", "/v1/messages")
        ]
        assert {each.headers["content-type"] for each in (chat, messages)} == {
            "text/event-stream; charset=utf-8"
        }
        assert chat.text.startswith(": keep-alive\n\n")
        assert messages.text.startswith("event: ping\n")
        refused = await http.post(
            "/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}
        )
        assert (refused.status_code, refused.json()["error"]["type"]) == (415, "invalid_request_error")
        elsewhere = await http.get("/v1/models/no", headers={"anthropic-version": "2023-06-01"})
        assert elsewhere.json()["type"] == "error"


def test_it_is_in_the_document() -> None:
    operation = document([*ROUTES, ROW])["paths"]["/toy/{model}/talk"]["post"]
    assert operation["summary"] == "Answer a talk."
    bodies = (operation["requestBody"], operation["responses"]["200"], operation["responses"]["default"])
    schemas = [body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2] for body in bodies]
    assert schemas == ["Talk", "Line", "ToyError"]
    assert "application/x-ndjson" in operation["responses"]["200"]["content"]
