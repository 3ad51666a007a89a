"""The records of answers: GET /v1/debug, in every API; what stays, for whom; and that nothing else changes."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from tests.server import NO_TLS, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "roll", "arguments": {"sides": 6}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "the dice", "output": f"I will. {CALL}"},
    {"when": "Slowly", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"when": "be broken", "output": "<tool_call>\n{nothing"},
    {"output": "Hello there"},
]
TOOL = {"name": "roll", "parameters": {"type": "object", "properties": {"sides": {"type": "integer"}}}}
KEYS = ("a-key-of-the-tests", "another-key")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT, api_key=KEYS, debug_answers=3) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server, KEYS[0]) as http:
        yield http


def client(server: Running, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(verify=NO_TLS, base_url=server.url + "/v1", headers=headers)


def asking(api: str, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "/chat/completions": {"messages": messages, "tools": [{"type": "function", "function": TOOL}]},
        "/responses": {"input": text, "tools": [{"type": "function", **TOOL}]},
        "/messages": {
            "messages": messages,
            "max_tokens": 99,
            "tools": [{"name": "roll", "input_schema": TOOL["parameters"]}],
        },
    }[api] | {"model": "scripted"}


async def inside(http: httpx.AsyncClient, answer: str) -> dict[str, Any]:
    response = await http.get(f"/debug/{answer}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("api", ["/chat/completions", "/responses", "/messages"])
async def test_the_inside_of_an_answer_is_found_by_its_id_in_every_api(
    http: httpx.AsyncClient, api: str
) -> None:
    answer = (await http.post(api, json=asking(api, "Roll the dice"))).json()
    found = await inside(http, answer["id"])
    assert (found["id"], found["dialect"], found["unmet"]) == (answer["id"], "hermes", [])
    [generation] = found["generations"]
    assert generation["text"] == f"I will. {CALL}"
    assert (
        "".join(token["text"] for step in generation["steps"] for token in step["tokens"])
        == generation["text"]
    )
    tokens = generation["prompt"]["tokens"]
    assert "".join(token["text"] for token in tokens) == generation["prompt"]["text"]
    assert "<|im_start|>" in [token["text"] for token in tokens if token["special"]]
    events = [event for step in generation["steps"] for event in step["events"]]
    assert {"type": "call_started", "name": "roll"}.items() <= next(
        event.items() for event in events if event["type"] == "call_started"
    )
    raw = "".join(event.get("raw", "") for event in [*events, *generation["end"]])
    assert raw == generation["text"]
    assert generation["verdicts"] == []


async def test_verdicts_on_broken_markup_and_unmet_demands_are_there(http: httpx.AsyncClient) -> None:
    body = asking("/chat/completions", "Please be broken") | {"tool_choice": "required"}
    found = await inside(http, (await http.post("/chat/completions", json=body)).json()["id"])
    assert len(found["generations"][0]["verdicts"]) == 1
    assert found["unmet"] == ["tool_choice: the model called no tool."]


async def test_log_probabilities_are_recorded_unasked_and_not_shown(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/chat/completions", json=asking("/chat/completions", "Hi"))).json()
    assert answer["choices"][0].get("logprobs") is None
    [generation] = (await inside(http, answer["id"]))["generations"]
    assert generation["sampling"]["logprobs"] == 5
    tokens = [token for step in generation["steps"] for token in step["tokens"]]
    assert all(token["logprob"] is not None for token in tokens)


async def test_an_answer_is_the_same_whether_its_inside_is_kept_or_not(http: httpx.AsyncClient) -> None:
    async with running(SCRIPT) as plain, client(plain, "none") as other:
        for text in ("Roll the dice", "Hi"):
            kept, free = [
                (await each.post("/chat/completions", json=asking("/chat/completions", text))).json()
                for each in (http, other)
            ]
            assert kept["usage"] == free["usage"]
            assert kept["choices"][0].keys() == free["choices"][0].keys()
            assert kept["choices"][0]["message"]["content"] == free["choices"][0]["message"]["content"]


async def test_the_inside_of_a_stream_is_there_while_it_is_written(http: httpx.AsyncClient) -> None:
    body = asking("/chat/completions", "Hi") | {"stream": True}
    async with http.stream("POST", "/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        found = await inside(http, first["id"])
        assert found["generations"][0]["prompt"]["text"]


async def test_only_the_last_answers_of_a_key_are_kept_and_only_for_it(
    server: Running, http: httpx.AsyncClient
) -> None:
    ids = [
        (await http.post("/chat/completions", json=asking("/chat/completions", "Hi"))).json()["id"]
        for _ in range(4)
    ]
    listed = (await http.get("/debug")).json()["data"]
    assert [each["id"] for each in listed] == ids[:0:-1]
    gone = await http.get(f"/debug/{ids[0]}")
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "id")
    async with client(server, KEYS[1]) as other:
        assert (await other.get(f"/debug/{ids[-1]}")).status_code == 404
        assert (await other.get("/debug")).json()["data"] == []


async def test_a_background_response_is_shown_from_its_log_where_nothing_is_kept(
    server: Running, http: httpx.AsyncClient
) -> None:
    created = (
        await http.post("/responses", json=asking("/responses", "Roll the dice") | {"background": True})
    ).json()
    while (await http.get(f"/responses/{created['id']}")).json()["status"] in ("queued", "in_progress"):
        pass
    [kept] = (await inside(http, created["id"]))["generations"]
    for _ in range(3):  # others take its place
        await http.post("/chat/completions", json=asking("/chat/completions", "Hi"))
    [again] = (await inside(http, created["id"]))["generations"]
    assert again["prompt"] == kept["prompt"]
    assert again["text"] == kept["text"] == f"I will. {CALL}"
    assert _events(again) == _events(kept)


def _events(generation: dict[str, Any]) -> list[tuple[str, str]]:
    events = [event for step in generation["steps"] for event in step["events"]] + generation["end"]
    return [(event["type"], event.get("raw", "")) for event in events]


async def test_without_the_option_nothing_is_kept_and_the_refusal_names_it() -> None:
    async with running(SCRIPT) as plain, client(plain, "none") as http:
        answer = (await http.post("/chat/completions", json=asking("/chat/completions", "Hi"))).json()
        for path in ("/debug", f"/debug/{answer['id']}"):
            refused = await http.get(path)
            assert refused.status_code == 403
            assert "--debug-answers" in refused.json()["error"]["message"]
        assert not [*plain.app.records.last("anyone")]


async def test_the_status_shows_what_is_being_written(http: httpx.AsyncClient) -> None:
    async def tokens_now() -> int:
        now: int = (await http.get("/status")).json()["models"][0]["tokens_now"]
        return now

    body = asking("/chat/completions", "Slowly") | {"stream": True}
    async with asyncio.timeout(10), http.stream("POST", "/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        while (first := await tokens_now()) < 2:
            await asyncio.sleep(0.01)
        while await tokens_now() <= first:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(10):  # the client has left
        while await tokens_now():
            await asyncio.sleep(0.01)


async def test_the_status_counts_what_models_have_written(http: httpx.AsyncClient) -> None:
    before = (await http.get("/status")).json()["models"][0]
    answer = (await http.post("/chat/completions", json=asking("/chat/completions", "Hi"))).json()
    status = (await http.get("/status")).json()
    [model] = status["models"]
    assert (status["health"], model["id"], model["loaded"], model["running"]) == (
        "ready",
        "scripted",
        True,
        0,
    )
    assert model["slots"] > 0
    assert model["tokens_now"] == 0
    assert model["generated_tokens"] - before["generated_tokens"] == answer["usage"]["completion_tokens"]
