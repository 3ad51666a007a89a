"""A server that stores nothing: it answers, and keeps no object of its clients."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.http.app import ROUTES
from tests.http.chat_api import CHAT, ChatApi, chatting

RESPONSES = "/v1/responses"
KEPT = ("conversation", "vector_store", "container", "file", "upload", "batch")


@pytest.fixture
async def api() -> AsyncIterator[ChatApi]:
    async with chatting([{"output": "Fine."}], store="none") as api:
        yield api


@pytest.mark.parametrize("store", [None, True, False])
async def test_a_response_is_not_stored_and_says_so(api: ChatApi, store: bool | None) -> None:
    for stream in (False, True):
        asked = {"model": "scripted", "input": "Hi", "store": store, "stream": stream, "request_id": "mine"}
        response = await api.http.post(RESPONSES, json=asked)
        *_, last, _ = re.findall(r"^data: (.*)$", response.text, re.MULTILINE) if stream else ("", "", "")
        body: Any = json.loads(last)["response"] if stream else response.json()
        assert (body["id"], body["store"], body["status"]) == ("resp_mine", False, "completed")
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            found = await api.http.request(method, f"{RESPONSES}/{body['id']}{path}")
            assert found.status_code == 404
            assert "--store none" in found.json()["error"]["message"]


async def test_a_completion_is_not_stored_and_a_note_says_so(api: ChatApi) -> None:
    body = await api.ask("Hi", store=True)
    assert [note["param"] for note in body["notes"]] == ["store"]
    await api.get(f"{CHAT}/{body['id']}", 404)
    assert "notes" not in await api.ask("Hi")


@pytest.mark.parametrize(
    ("more", "param", "status"),
    [
        ({"background": True}, "background", 400),
        ({"conversation": "conv_1"}, "conversation", 400),
        ({"previous_response_id": "resp_1"}, "previous_response_id", 404),
    ],
)
async def test_what_needs_a_store_is_refused_by_name(
    api: ChatApi, more: dict[str, Any], param: str, status: int
) -> None:
    error = (await api.post(RESPONSES, {"model": "scripted", "input": "Hi", **more}, status))["error"]
    assert error["param"] == param
    assert "--store none" in error["message"]


async def test_there_is_nothing_else_that_could_be_kept(api: ChatApi) -> None:
    for route in ROUTES:
        if any(name in route.path for name in KEPT) and route.path != f"{CHAT}/batch":
            for method in sorted(getattr(route, "methods", None) or ()):
                response = await api.http.request(method, route.path.replace("{", "").replace("}", ""))
                assert response.status_code == 404, (method, route.path)
    prompt = [{"role": "user", "content": "Hi"}]
    await api.post(f"{CHAT}/render", {"model": "scripted", "messages": prompt})
    await api.post(f"{CHAT}/batch", {"model": "scripted", "messages": [prompt]})
    await api.post(f"{RESPONSES}/input_tokens", {"model": "scripted", "input": "Hi"})
