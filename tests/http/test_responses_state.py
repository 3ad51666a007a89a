"""What Responses remember: every status, chains, lists, and what is wrong with them."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from antiphon.engines.scripted import ScriptedEngine
from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, read_some, rows, text_of, user
from tests.openai_schema import OPENAI_RESPONSES, validate
from tests.server import NO_TLS, Running, running

END = "<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Rome"}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": f"more{END}", "output": "<think>\nHm.\n</think>\n\nHello there!"},
    {"when": f"callit{END}", "output": CALL},
    {"when": f"fails{END}", "output": "one two three four", "fail_after": 3},
    {"when": f"slow{END}", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"output": "<think>\nHm.\n</think>\n\nHello there!"},
]
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
REQUIRED = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice", "truncation"),
    *("parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background"),
    *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
}
"""The fields that Open Responses requires of every response, in any status."""


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


# Lists


async def test_responses_are_listed_for_their_owner() -> None:
    async with running(SCRIPT, api_key=("ann", "bob")) as server:
        heads = [{"authorization": f"Bearer {key}"} for key in ("ann", "bob")]
        async with httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as http:

            async def listed(head: int, status: int = 200, **query: Any) -> Any:
                response = await http.get("/responses", headers=heads[head], params=query)
                assert response.status_code == status
                return response.json()

            made = []
            for background in (False, True, True):
                wire = {
                    "model": "scripted",
                    "input": "slow" if background else "Hi",
                    "background": background,
                }
                made.append((await http.post("/responses", json=wire, headers=heads[0])).json()["id"])
            found = await listed(0)
            assert [each["id"] for each in found["data"]] == made[::-1]
            assert (found["object"], found["has_more"]) == ("list", False)
            assert found["data"][-1] | {"created_at": 0} == {
                "object": "response",
                "id": made[0],
                "created_at": 0,
                "status": "completed",
                "model": "scripted",
                "background": False,
            }
            assert [each["id"] for each in (await listed(0, background="true", limit=1))["data"]] == made[2:]
            after = await listed(0, background="true", after=made[2])
            assert [each["id"] for each in after["data"]] == [made[1]]
            assert [each["id"] for each in (await listed(0, background="false"))["data"]] == made[:1]
            assert (await listed(1))["data"] == []
            assert (await listed(1, 404, after=made[0]))["error"]["param"] == "after"
            assert (await listed(0, 400, background="maybe"))["error"]["param"] == "background"
            for response_id in made[1:]:
                await http.post(f"/responses/{response_id}/cancel", json={}, headers=heads[0])
            statuses = [each["status"] for each in (await listed(0))["data"]]
            assert statuses == ["cancelled", "cancelled", "completed"]


# Every status


async def ended(api: Api, status: str) -> Any:
    """A response of this status, streamed, and stored."""
    match status:
        case "completed":
            return await api.streamed("Hi")
        case "incomplete":
            return await api.streamed("Hi", max_output_tokens=2)
        case "failed":
            return await api.streamed("fails")
        case _:
            body = await api.create("slow", background=True)
            await read_some(api, body["id"])
            return await api.post(f"/responses/{body['id']}/cancel", {})


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
async def test_a_response_that_has_ended(api: Api, server: Running, status: str) -> None:
    response = await ended(api, status)
    assert response["status"] == status
    assert response.keys() >= REQUIRED
    assert await api.get(f"/responses/{response['id']}") == response
    assert check_stream(await api.events(response["id"])) == response

    # What was said can be continued, whole or not.
    await api.create("more", previous_response_id=response["id"])
    prompt = prompt_of(server)
    assert text_of(response).strip() in prompt
    assert prompt.endswith(f"more{END}")


async def test_a_response_that_has_not_ended(api: Api) -> None:
    queued = await api.create("slow", background=True)
    assert queued["status"] == "queued"
    await read_some(api, queued["id"])
    running = await api.get(f"/responses/{queued['id']}")
    assert running["status"] == "in_progress"
    for body in (queued, running):
        assert body.keys() >= REQUIRED

    error = await api.refused("more", previous_response_id=queued["id"])
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_ended")
    await api.post(f"/responses/{queued['id']}/cancel", {})


async def test_a_stream_that_has_not_ended_is_not_gone_on_with_either(api: Api) -> None:
    async with api.http.stream("POST", "/responses", json=ask("slow", stream=True)) as response:
        lines = response.aiter_lines()  # left open: closing it disconnects
        created = await anext(line async for line in lines if line.startswith("data: "))
        response_id = json.loads(created.removeprefix("data: "))["response"]["id"]
        await api.refused("more", previous_response_id=response_id)


# Chains


async def test_a_deleted_response_is_not_gone_on_with(api: Api) -> None:
    first = await api.create("Hi")
    second = await api.create("more", previous_response_id=first["id"])
    await api.delete(f"/responses/{first['id']}")

    direct = await api.refused("more", 404, previous_response_id=first["id"])
    further_back = await api.refused("more", 404, previous_response_id=second["id"])

    for error in (direct, further_back):
        assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
        assert first["id"] in error["message"]
    assert await api.get(f"/responses/{second['id']}") == second


async def test_the_chain_is_shown_in_its_order(api: Api, server: Running) -> None:
    previous = None
    for text in ("one", "two", "three"):
        previous = (await api.create(text, previous_response_id=previous))["id"]
    said = [line for line in prompt_of(server).split("\n") if "<|im_end|>" in line]
    assert [line.removesuffix("<|im_end|>") for line in said] == [
        *("one", "Hello there!", "two", "Hello there!", "three")
    ]


async def test_instructions_are_those_of_the_request_alone(api: Api, server: Running) -> None:
    first = await api.create("Hi", instructions="Speak like a pirate.")
    assert prompt_of(server).startswith("<|im_start|>system\nSpeak like a pirate.<|im_end|>")
    second = await api.create("more", previous_response_id=first["id"])
    assert "pirate" not in prompt_of(server)
    assert (first["instructions"], second["instructions"]) == ("Speak like a pirate.", None)
    await api.create("more", previous_response_id=first["id"], instructions="Speak like a king.")
    assert prompt_of(server).startswith("<|im_start|>system\nSpeak like a king.<|im_end|>")


async def test_settings_are_not_carried_over(api: Api, server: Running) -> None:
    first = await api.create("Hi", tools=TOOLS, metadata={"a": "b"}, max_output_tokens=50, temperature=0.5)
    second = await api.create("more", previous_response_id=first["id"])
    assert (second["tools"], second["metadata"], second["max_output_tokens"]) == ([], {}, None)
    assert "<tools>" not in prompt_of(server)


async def test_an_output_needs_its_call_in_the_chain(api: Api) -> None:
    first = await api.create("callit", tools=TOOLS)
    [call] = items_of(first, "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    other = await api.create("Hi")

    error = await api.refused([user("x"), result], previous_response_id=other["id"])

    assert error["param"] == "input[1].call_id"
    assert (await api.create([result], previous_response_id=first["id"]))["status"] == "completed"


async def test_a_cut_answer_is_gone_on_with(api: Api, server: Running) -> None:
    cut = await api.create("Hi", max_output_tokens=8)
    assert cut["status"] == "incomplete"
    said = text_of(cut)
    assert said
    await api.create(None, previous_response_id=cut["id"])
    assert prompt_of(server).endswith(said)


async def test_an_item_of_any_response_may_be_referred_to(api: Api, server: Running) -> None:
    first = await api.create([user("one"), user("two")])
    [_, two] = (await api.get(f"/responses/{first['id']}/input_items", order="asc"))["data"]
    [said] = items_of(first, "message")
    second = await api.create([{"type": "item_reference", "id": two["id"]}, {"id": said["id"]}, user("more")])
    assert prompt_of(server) == (
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nHello there!<|im_end|>\n"
        f"<|im_start|>user\nmore{END}"
    )
    listed = (await api.get(f"/responses/{second['id']}/input_items", order="asc"))["data"]
    assert listed[:2] == [two, said]
    error = await api.refused([user("x"), {"type": "item_reference", "id": "msg_nothing"}], 404)
    assert error["param"] == "input[1].id"


# Lists


async def test_pages_of_input_items(api: Api) -> None:
    body = await api.create([user(str(number)) for number in range(25)])
    path = f"/responses/{body['id']}/input_items"

    page = await api.get(path)
    validate("ResponseItemList", page, OPENAI_RESPONSES)
    assert await api.texts(path) == [str(number) for number in range(24, 4, -1)]
    assert page["has_more"] is True
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])

    ids = [item["id"] for item in (await api.get(path, order="asc", limit=100))["data"]]
    assert len(set(ids)) == 25
    assert await api.texts(path, order="asc", after=ids[3], limit=2) == ["4", "5"]
    assert await api.texts(path, order="desc", after=ids[3], limit=2) == ["2", "1"]
    assert await api.texts(path, order="asc", before=ids[3], limit=2) == ["1", "2"]
    assert await api.texts(path, order="asc", after=ids[1], before=ids[4]) == ["2", "3"]
    assert (await api.get(path, after=ids[1], limit=1))["has_more"] is False
    empty = await api.get(path, after=ids[0])
    assert (empty["data"], empty["first_id"], empty["last_id"], empty["has_more"]) == ([], "", "", False)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"limit": 0}, 400),
        ({"limit": 101}, 400),
        ({"limit": "-1"}, 400),
        ({"limit": "two"}, 400),
        ({"limit": "9" * 5000}, 400),
        ({"order": "up"}, 400),
        ({"after": "msg_nothing"}, 404),
        ({"before": "msg_nothing"}, 404),
        ({"after": "\0"}, 400),
    ],
)
async def test_pages_that_there_are_not(api: Api, query: Any, status: int) -> None:
    body = await api.create("Hi")
    path = await api.conversation(user("Hi"))
    for listed in (f"/responses/{body['id']}/input_items", f"{path}/items"):
        error = (await api.get(listed, status, **query))["error"]
        assert [error["param"]] == [*query]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "\0"}, "previous_response_id"),
        ({"conversation": "\0"}, "conversation"),
        ({"conversation": {"id": "\0"}}, "conversation.id"),
        ({"input": [{**user("Hi"), "id": "\0"}]}, "input[0].id"),
        ({"input": [{**user("Hi"), "id": "é" * 257}]}, "input[0].id"),
    ],
)
async def test_ids_that_nothing_can_have(api: Api, fields: Any, param: str) -> None:
    error = (await api.post("/responses", ask("Hi") | fields, 400))["error"]
    assert error["param"] == param


async def test_a_reference_to_what_nothing_can_be_called(api: Api) -> None:
    assert (await api.refused([{"type": "item_reference", "id": "\0"}], 404))["param"] == "input[0].id"
    assert (await api.create([{**user("Hi"), "id": "é" * 256}]))["status"] == "completed"


# What is noted


async def test_metadata(api: Api) -> None:
    most = {f"{number:064}": "v" * 512 for number in range(16)}
    assert (await api.create("Hi", metadata=most))["metadata"] == most
    path = await api.conversation(metadata=most)
    assert (await api.get(path))["metadata"] == most
    assert (await api.post(path, {"metadata": None}))["metadata"] == {}
    assert (await api.create("Hi", metadata=None))["metadata"] == {}


@pytest.mark.parametrize(
    "metadata",
    [{"k" * 65: "v"}, {"k": "v" * 513}, dict.fromkeys("abcdefghijklmnopq", "v"), {"k": 1}, [], "k"],
)
async def test_metadata_has_limits(api: Api, metadata: Any) -> None:
    path = await api.conversation()
    error = await api.refused("Hi", metadata=metadata)
    for to in (path, "/conversations"):
        assert (await api.post(to, {"metadata": metadata}, 400))["error"] == error
    assert error["param"].startswith("metadata")


# What is not kept


async def test_what_is_not_stored_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with running(SCRIPT, store=f"sqlite:///{path}") as server, client(server) as api:
        body = await api.create("callit", store=False, tools=TOOLS, metadata={"a": "b"})
        await api.streamed("Hi", store=False)
        await api.streamed("fails", store=False)
        await api.create("Hi", store=False, max_output_tokens=1)
        await api.post("/responses/input_tokens", ask("Hi"))
        await api.post("/responses/compact", ask("Hi"))
        async with api.http.stream("POST", "/responses", json=ask("slow", stream=True, store=False)) as left:
            async for line in left.aiter_lines():
                if "output_text.delta" in line:
                    break
        await api.get(f"/responses/{body['id']}", 404)
        await api.refused("more", 404, previous_response_id=body["id"])
        assert set(rows(path).values()) == {0}, rows(path)

        await api.create("Hi")
        assert rows(path)["responses"] == 1  # or the test would see nothing


async def test_what_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with running(SCRIPT, store=f"sqlite:///{path}") as server, client(server) as api:
        conversation = await api.conversation(user("Hi"))
        body = await api.streamed("more", conversation=conversation.rpartition("/")[2])
        await api.delete(conversation)
        await api.delete(f"/responses/{body['id']}")
        assert set(rows(path).values()) == {0}, rows(path)


# Too long


@pytest_asyncio.fixture
async def small() -> AsyncIterator[Running]:
    """A server whose model reads 100 tokens."""
    async with running(ScriptedEngine(SCRIPT, context=100)) as server:
        yield server


async def test_a_conversation_that_is_too_long_is_refused(small: Running) -> None:
    long = [user(f"number {number}") for number in range(40)]
    async with client(small) as api:
        for fields in ({}, {"truncation": "disabled"}):
            error = await api.refused(long, **fields)
            assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
        assert (await api.post("/responses/input_tokens", ask(long)))["input_tokens"] > 100
        background = await api.create(long, background=True)
        done = await api.finished(background["id"])
        assert done["status"] == "failed"
        assert "too long" in done["error"]["message"]


async def test_the_oldest_are_left_out_if_that_is_wanted(small: Running) -> None:
    long = [user(f"number {number}") for number in range(40)]
    async with client(small) as api:
        body = await api.create(long, truncation="auto", instructions="Be kind.")
        prompt = prompt_of(small)
        assert body["truncation"] == "auto"
        assert "Be kind." in prompt
        assert f"number 39{END}" in prompt
        assert "number 0<" not in prompt
        assert body["usage"]["input_tokens"] <= 100
        first = await api.create([user("one"), *long], truncation="auto")
        await api.create("last", previous_response_id=first["id"], truncation="auto")
        assert f"last{END}" in prompt_of(small)
        stored = await api.get(f"/responses/{first['id']}/input_items", limit=100)
        assert len(stored["data"]) == 41  # what is left out is kept all the same


async def test_one_message_that_is_too_long_cannot_be_shortened(small: Running) -> None:
    async with client(small) as api:
        error = await api.refused("word " * 200, truncation="auto")
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
