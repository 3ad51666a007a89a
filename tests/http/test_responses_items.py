"""Items of every type over HTTP: what goes in is listed as it is, comes back, and can be sent again."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from antiphon.apis.responses.kinds import KINDS
from tests.apis.responses.test_input import CALLED, FROM_CLIENTS, OUTPUTS
from tests.http.api import Api, ask, client, prompt_of, user
from tests.openai_schema import OPENAI_RESPONSES, validate
from tests.server import Running, running

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
    {"type": "message", "role": "system", "content": ""},
    {"type": "message", "role": "assistant", "content": "Hello", "phase": "commentary", "id": "msg_of_mine"},
    {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": 'é \u2028 \\ "', "annotations": [], "logprobs": []}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "user", "content": [], "extra": {"b": 1, "a": [None, 1.5, "x"]}},
]
REASONING: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
]
CALLS = [
    {**CALLED, "namespace": "space", "id": "fc_of_mine", "status": "incomplete"},
    {**CALLED, "arguments": {"a": [1]}},
    {**CALLED, "arguments": '{"cut": '},
    {**OUTPUTS["function_call_output"], "id": "fco_of_mine", "status": "completed"},
    {**OUTPUTS["function_call_output"], "output": [{"type": "input_text", "text": "21"}]},
    {**OUTPUTS["custom_tool_call_output"], "output": None},
]
MADE_HERE = ("compaction", "mcp_approval_response")
"""What clients do not make up: the server seals the one, and signs what the other answers (`test_mcp.py`)."""
EVERYTHING = [
    *MESSAGES,
    *(item for type_, item in FROM_CLIENTS.items() if type_ not in MADE_HERE),
    *OUTPUTS.values(),
    *REASONING,
    *CALLS,
]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running([{"output": "Hello there!"}]) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


async def everything(api: Api) -> list[Any]:
    """Items of every type, one of them made by the server itself."""
    short = await api.post("/responses/compact", ask("Hi"))
    return [*EVERYTHING, short["output"][-1], user("more")]


async def listed(api: Api, path: str) -> list[bytes]:
    """All items of a list as they are on the wire."""

    class Page(msgspec.Struct):
        data: list[msgspec.Raw]

    response = await api.http.get(path, params={"order": "asc", "limit": 100})
    assert response.status_code == 200, response.text
    return [bytes(raw) for raw in msgspec.json.decode(response.content, type=Page).data]


async def test_there_is_one_of_every_type(api: Api) -> None:
    types = {item.get("type", "message") for item in await everything(api)}
    assert types == set(KINDS) - {"compaction_trigger", "mcp_approval_response"}


async def test_every_item_survives(api: Api) -> None:
    given = await everything(api)
    first = await api.create(given)

    payloads = await listed(api, f"/responses/{first['id']}/input_items")

    items = [json.loads(payload) for payload in payloads]
    assert len(items) == len(given)
    for item, sent in zip(items, given, strict=True):
        assert item["id"]
        kept = {name: value for name, value in sent.items() if name not in ("content", "arguments", "output")}
        assert item == item | {name: value for name, value in kept.items() if value is not None}
    # What is listed is whole: sent again it stays the same, byte for byte, through every door.
    again = await api.create(items)
    assert await listed(api, f"/responses/{again['id']}/input_items") == payloads
    references = [{"type": "item_reference", "id": item["id"]} for item in items]
    referred = await api.create([*references, user("more")])
    assert (await listed(api, f"/responses/{referred['id']}/input_items"))[:-1] == payloads
    conversation = await api.post("/conversations", {"items": items[:20]})
    path = f"/conversations/{conversation['id']}/items"
    for start in range(20, len(items), 20):
        await api.post(path, {"items": items[start : start + 20]})
    assert await listed(api, path) == payloads
    one = await api.http.get(f"{path}/{items[7]['id']}")
    assert one.content == payloads[7]


async def test_what_is_listed_is_what_the_specification_lists(api: Api) -> None:
    first = await api.create(await everything(api))
    page = await api.get(f"/responses/{first['id']}/input_items", order="asc", limit=100)
    faults = []
    for item in page["data"]:
        try:
            validate("ItemResource", item, OPENAI_RESPONSES)
        except AssertionError:
            faults.append(item["type"])
    # Two lack what their clients need not give, and the server cannot know: `call_id`, times, `request_id`; one
    # is newer than this copy of the specification.
    assert sorted(faults) == ["configuration_update", "local_shell_call_output", "shell_call"]


async def test_every_item_is_carried_over(api: Api, server: Running) -> None:
    first = await api.create(await everything(api))
    sent = prompt_of(server)
    await api.create("and more", previous_response_id=first["id"])
    carried = prompt_of(server)
    assert carried.startswith(sent.removesuffix("<think>\n").removesuffix("<|im_start|>assistant\n"))


async def test_ids_are_new_for_each_response_and_conversation(api: Api) -> None:
    ids = []
    for _ in range(2):
        body = await api.create([user("Hi"), user("Hi")])
        ids += [item["id"] for item in (await api.get(f"/responses/{body['id']}/input_items"))["data"]]
        conversation = await api.post("/conversations", {"items": [user("Hi")]})
        added = await api.post(f"/conversations/{conversation['id']}/items", {"items": [user("Hi")]})
        listed = await api.get(f"/conversations/{conversation['id']}/items")
        assert added["data"][0] == listed["data"][0]
        ids += [item["id"] for item in listed["data"]]
    assert len(set(ids)) == len(ids) == 8


async def test_unknown_fields_are_kept_in_items_and_ignored_in_requests(api: Api) -> None:
    given = {**user("Hi"), "internal_chat_message_metadata_passthrough": {"turn_id": "t"}}
    body = await api.create([given], client_metadata={"a": "b"}, nobody_knows=[1])
    assert "client_metadata" not in body
    [item] = (await api.get(f"/responses/{body['id']}/input_items"))["data"]
    assert item["internal_chat_message_metadata_passthrough"] == {"turn_id": "t"}


async def test_counting_and_compacting_read_the_same_items(api: Api) -> None:
    given = await everything(api)
    body = await api.create(given)
    counted = await api.post("/responses/input_tokens", ask(given))
    assert counted["input_tokens"] == body["usage"]["input_tokens"]
    short = await api.post("/responses/compact", ask(given))
    assert [item["type"] for item in short["output"][-2:]] == ["message", "compaction"]
    assert all(item["role"] != "assistant" for item in short["output"][:-1])


@pytest.mark.parametrize("type_", ["nothing", "openai:web_search"])
async def test_types_that_there_are_not(api: Api, type_: str) -> None:
    error = await api.refused([user("Hi"), {"type": type_, "id": "x"}])
    assert error["param"] == "input[1].type"
