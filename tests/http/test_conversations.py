"""Conversations over HTTP: their items, what responses add to them, and what is wrong with them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from antiphon.apis.responses import accept as responses_accept
from antiphon.app.app import MANY_BYTES, MANY_ITEMS
from antiphon.app.responses import history as responses_history
from tests.http.api import Api, ask, client, prompt_of, read_some, user
from tests.openai_schema import OPENAI_RESPONSES, validate
from tests.server import Running, running

END = "<|im_end|>\n<|im_start|>assistant\n"
SCRIPT: list[Mapping[str, Any]] = [
    {"when": f"fails{END}", "output": "one two three four", "fail_after": 3},
    {"when": f"slow{END}", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"output": "<think>\nHm.\n</think>\n\nHello there!"},
]
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


async def test_pages_of_a_conversation(api: Api) -> None:
    path = await api.conversation(*(user(str(number)) for number in range(20)))
    added = await api.post(f"{path}/items", {"items": [user(str(number)) for number in range(20, 25)]})
    validate("ConversationItemList", added, OPENAI_RESPONSES)
    assert [item["content"][0]["text"] for item in added["data"]] == ["20", "21", "22", "23", "24"]

    page = await api.get(f"{path}/items")
    validate("ConversationItemList", page, OPENAI_RESPONSES)
    assert await api.texts(f"{path}/items") == [str(number) for number in range(24, 4, -1)]
    assert page["has_more"] is True
    rest = await api.get(f"{path}/items", after=page["last_id"], limit=100)
    assert (len(rest["data"]), rest["has_more"]) == (5, False)
    ids = [item["id"] for item in (await api.get(f"{path}/items", order="asc", limit=100))["data"]]
    assert await api.texts(f"{path}/items", order="asc", after=ids[22]) == ["23", "24"]


async def test_a_conversation_with_a_deleted_item(api: Api, server: Running) -> None:
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    path = await api.conversation(user("one"), called, result, user("two"))
    items = (await api.get(f"{path}/items", order="asc"))["data"]

    deleted = await api.delete(f"{path}/items/{items[0]['id']}")
    assert deleted["object"] == "conversation"
    await api.delete(f"{path}/items/{items[1]['id']}")
    body = await api.create("more", conversation=deleted["id"], tools=TOOLS)

    assert "one" not in prompt_of(server)
    assert "sunny" in prompt_of(server)  # an output without its call is shown
    assert body["conversation"] == {"id": deleted["id"]}
    error = (await api.delete(f"{path}/items/{items[0]['id']}", 404))["error"]
    assert items[0]["id"] in error["message"]
    await api.get(f"{path}/items/{items[0]['id']}", 404)
    assert [item["type"] for item in (await api.get(f"{path}/items", order="asc"))["data"]] == [
        *("function_call_output", "message", "message", "reasoning", "message")
    ]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
async def test_what_a_conversation_gets_of_a_response(api: Api, status: str) -> None:
    path = await api.conversation()
    given = {"completed": "Hi", "incomplete": "Hi", "failed": "fails", "cancelled": "slow"}[status]
    fields = {"conversation": path.rpartition("/")[2]}
    if status == "cancelled":
        body = await api.create(given, background=True, **fields)
        await read_some(api, body["id"])
        response = await api.post(f"/responses/{body['id']}/cancel", {})
    else:
        more = {"max_output_tokens": 8} if status == "incomplete" else {}
        response = await api.streamed(given, **fields, **more)
    assert response["status"] == status

    items = (await api.get(f"{path}/items", order="asc"))["data"]
    assert items[0]["content"][0]["text"] == given
    assert items[1:] == response["output"]


async def test_responses_that_run_side_by_side_in_a_conversation(api: Api) -> None:
    path = await api.conversation()
    name = path.rpartition("/")[2]
    await asyncio.gather(*(api.create(f"Hi {number}", conversation=name) for number in range(8)))
    items = (await api.get(f"{path}/items", order="asc", limit=100))["data"]
    assert [item["type"] for item in items] == ["message", "reasoning", "message"] * 8
    assert [item["role"] for item in items if item["type"] == "message"] == ["user", "assistant"] * 8


async def test_a_conversation_that_is_deleted_meanwhile(api: Api) -> None:
    path = await api.conversation()
    body = await api.create("slow", conversation=path.rpartition("/")[2], background=True)
    await read_some(api, body["id"])
    await api.delete(path)
    assert (await api.post(f"/responses/{body['id']}/cancel", {}))["status"] == "cancelled"
    await api.get(path, 404)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [user("Hi")]}),
        ("GET", "/items/msg_1", None),
        ("DELETE", "/items/msg_1", None),
    ],
)
async def test_a_conversation_that_there_is_not(api: Api, method: str, path: str, body: Any) -> None:
    response = await api.http.request(method, f"/conversations/conv_nothing{path}", json=body)
    assert response.status_code == 404
    error = response.json()["error"]
    validate("ErrorResponse", {"error": error}, OPENAI_RESPONSES)
    assert "conv_nothing" in error["message"]
    assert error["param"] in ("conversation_id", "item_id")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [user("Hi")] * 21}, "items"),
        ({"items": "Hi"}, "items"),
        ({"items": [{"type": "nothing"}]}, "items[0].type"),
        ({"items": [{}]}, "items[0].type"),
        ({"items": [user("a"), {"type": "message", "role": "king", "content": "b"}]}, "items[1].role"),
        ({"items": [{**user(""), "content": [{"type": "input_image"}]}]}, "items[0].content[0].image_url"),
    ],
)
async def test_items_that_a_conversation_does_not_take(api: Api, body: Any, param: str) -> None:
    path = await api.conversation()
    for to in ("/conversations", f"{path}/items"):
        assert (await api.post(to, body, 400))["error"]["param"] == param
    assert (await api.get(f"{path}/items"))["data"] == []


async def test_items_need_to_be_given(api: Api) -> None:
    path = await api.conversation()
    assert (await api.post(f"{path}/items", {}, 400))["error"]["param"] == "items"
    assert (await api.post(path, {}, 400))["error"]["param"] == "metadata"


# Long ones


READERS = (
    (responses_accept, "to_core"),
    (responses_accept, "request_parts"),
    (responses_history, "raw_added_tools"),
)
"""What goes through all items of a history."""
PATHS = ("/responses", "/responses/input_tokens", "/responses/compact", "/responses/render")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "items", [[user("one")] * (MANY_ITEMS + 1), [user("x" * MANY_BYTES)]], ids=["many", "large"]
)
async def test_a_long_history_is_read_beside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, items: list[Any]
) -> None:
    """What a request sends is short: the items that it continues count, too."""
    first = await api.create(items, max_output_tokens=1)
    threads: list[threading.Thread] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def read(*given: Any, **named: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*given, **named)

        return read

    for module, name in READERS:
        monkeypatch.setattr(module, name, recorded(getattr(module, name)))
    await api.post(path, ask("Hi", previous_response_id=first["id"]))
    assert len(threads) >= 2
    assert threading.main_thread() not in threads
