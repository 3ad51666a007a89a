"""A turn that continues a response costs what its new items cost, however long the history is.

What counts are items and bytes, not time: the same on every machine. Without what the server keeps, it answers
the same from the same prompts.
"""

import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

from antiphon.apis.request_object import KeptObject
from antiphon.apis.responses import diagnostics, history, kept_items
from antiphon.apis.responses.kept_items import KeptItems
from antiphon.core import cache_trace
from antiphon.core.limits import DEFAULTS, Limits
from tests.http.test_socket import connected, send
from tests.response_invariants import TERMINAL
from tests.server import NO_TLS, Running, running

SCRIPT: list[Mapping[str, Any]] = [
    {"when": "Our conversation is getting long", "output": "They talked."},
    {"output": "Hello there, friend!"},
]
NOTHING_KEPT = Limits(kept_item_bytes=0)
FIFTH, LAST = 5, 20
WORDS = "one two three four five six seven eight nine ten " * 12
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]

Ask = Callable[..., Awaitable[Any]]
"""Sends an input, and more parameters; returns the response."""


@asynccontextmanager
async def over_http(server: Running, key: str = "secret") -> AsyncIterator[Ask]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, verify=NO_TLS, headers=headers) as http:

        async def ask(given: Any, **more: Any) -> Any:
            body = {"model": "scripted", "input": given, "tools": TOOLS, **more}
            return (await http.post("/v1/responses", json=body)).json()

        yield ask


async def answered(socket: ClientConnection) -> Any:
    """The response with which a turn ends."""
    while True:
        event = msgspec.json.decode(await socket.recv(decode=False))
        assert event["type"] != "error", event
        if event["type"] in TERMINAL.values():
            return event["response"]


@asynccontextmanager
async def on_a_socket(server: Running) -> AsyncIterator[Ask]:
    async with connected(server, authorization="Bearer secret") as socket:

        async def ask(given: Any, **more: Any) -> Any:
            await send(socket, given, tools=TOOLS, **more)
            return await answered(socket)

        yield ask


@asynccontextmanager
async def unstored(server: Running) -> AsyncIterator[Ask]:
    async with on_a_socket(server) as ask:
        yield lambda given, **more: ask(given, store=False, **more)


@asynccontextmanager
async def served(limit: Limits = DEFAULTS) -> AsyncIterator[Running]:
    async with running(SCRIPT, limit=limit, api_key=("secret", "other")) as server:
        yield server


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The items that are decoded, hashed and read for the model, and the bytes of traces that are hashed."""
    done = Counter[str]()

    def counted(name: str, function: Any, size: Callable[..., int] = lambda *_: 1) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            done[name] += size(*given)
            return function(*given, **named)

        return call

    monkeypatch.setattr(kept_items, "KeptObject", counted("decoded", KeptObject))
    monkeypatch.setattr(diagnostics, "_shown", counted("hashed", diagnostics._shown))
    monkeypatch.setattr(history, "parse_parts", counted("read", history.parse_parts))
    monkeypatch.setattr(cache_trace, "blake2b", counted("traced", cache_trace.blake2b, len))
    return done


async def costs(ask: Ask, work: Counter[str]) -> list[Counter[str]]:
    """The work of each turn of a session."""
    turns, previous = [], {}
    for number in range(LAST):
        work.clear()
        response = await ask(f"{number:02}: {WORDS}", **previous)
        previous = {"previous_response_id": response["id"]}
        turns.append(work.copy())
    return turns


@pytest.mark.parametrize("transport", [over_http, on_a_socket, unstored])
async def test_the_last_turn_costs_as_much_as_the_fifth(transport: Any, work: Counter[str]) -> None:
    async with served() as server, transport(server) as ask:
        turns = await costs(ask, work)
    fifth, last = turns[FIFTH - 1], turns[LAST - 1]
    assert {name: last[name] for name in ("decoded", "hashed", "read")} == {
        name: fifth[name] for name in ("decoded", "hashed", "read")
    }
    assert 0 < last["decoded"] <= 2
    # The last block of the prompt before is hashed again, with what is new.
    assert last["traced"] <= 2 * 4 * cache_trace.BLOCK + 64


async def test_without_what_is_kept_a_turn_costs_its_whole_history(work: Counter[str]) -> None:
    """So the counts above would show it."""
    async with served(NOTHING_KEPT) as server, over_http(server) as ask:
        turns = await costs(ask, work)
    for name in ("decoded", "hashed", "read"):
        assert turns[LAST - 1][name] > 4 * turns[FIFTH - 1][name]


# The same answers


async def _a_fork(ask: Ask) -> None:
    first = await ask(WORDS)
    second = await ask("second", previous_response_id=first["id"])
    await ask("third", previous_response_id=second["id"])
    await ask("another second", previous_response_id=first["id"], instructions="Be brief.")
    await ask([{"type": "message", "role": "user", "content": "second"}], previous_response_id=first["id"])


async def _a_compaction(ask: Ask) -> None:
    first = await ask(WORDS)
    second = await ask([{"type": "compaction_trigger"}], previous_response_id=first["id"])
    third = await ask("and now?", previous_response_id=second["id"])
    await ask("then?", previous_response_id=third["id"])


async def _tools_on_the_way(ask: Ask) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [{**TOOLS[0], "name": "g"}]}
    effort = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    first = await ask([{"role": "user", "content": "Hi"}, added])
    second = await ask([effort, {"role": "user", "content": "more"}], previous_response_id=first["id"])
    call = {"type": "function_call", "call_id": "c", "name": "g", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]}
    third = await ask([call, output], previous_response_id=second["id"])
    await ask([{**output, "output": "2"}], previous_response_id=third["id"])


CONVERSATIONS = [_a_fork, _a_compaction, _tools_on_the_way]


def kept_by(items: KeptItems) -> dict[tuple[str, str, bytes], Any]:
    """All that is kept, by owner, source and payload."""
    kept = items._kept
    return {key: value for key, (value, _) in {**kept._older, **kept._recent}.items()}


async def prompts(limit: Limits, transport: Any, conversation: Callable[[Ask], Awaitable[None]]) -> list[Any]:
    """The prompts of a conversation, and what is kept is still what the payloads say."""
    async with served(limit) as server:
        async with transport(server) as ask:
            await conversation(ask)
        kept = server.app.kept_items
        for (owner, source, payload), item in kept_by(kept).items():
            [fresh] = KeptItems(0).read(owner, [payload], source)
            assert (fresh.value, fresh.where) == (item.value, item.where)
        return [request.prompt for request in server.engine.seen]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("transport", [over_http, on_a_socket, unstored])
async def test_what_is_kept_changes_no_prompt(transport: Any, conversation: Any) -> None:
    kept = await prompts(DEFAULTS, transport, conversation)
    assert len(kept) >= 4
    assert kept == await prompts(NOTHING_KEPT, transport, conversation)
    assert kept == await prompts(Limits(kept_item_bytes=20_000), transport, conversation)  # a few at a time


async def test_another_owner_has_nothing_of_it() -> None:
    async with served() as server, over_http(server) as ask, over_http(server, "other") as other:
        first = await ask(WORDS)
        await ask("more", previous_response_id=first["id"])
        owners = {owner for owner, _, _ in kept_by(server.app.kept_items)}
        refused = await other("more", previous_response_id=first["id"])
        assert refused["error"]["code"] == "previous_response_not_found"
        assert owners == {owner for owner, _, _ in kept_by(server.app.kept_items)}
        assert len(owners) == 1


async def test_errors_name_the_history_that_they_are_in() -> None:
    """One item may be in the history of a response, and in a conversation."""
    items = KeptItems(1 << 20)
    payload = b'{"type":"message","id":"msg_1","role":"user","content":[]}'
    for source in ("conversation", "previous_response_id"):
        assert [item.where for item in items.read("me", [payload], source)] == [source]


async def test_so_many_bytes_of_items_are_kept() -> None:
    size = 100 * kept_items.ITEM_BYTES
    items = KeptItems(size)
    for number in range(1000):
        items.read("me", [b'{"n":%d}' % number], "conversation")
    assert 49 <= len(kept_by(items)) <= 100


@pytest.mark.parametrize("value", ["[]", "{}", "1.5", '{"a":0}', '{"type":"input_text","text":"a"}'])
async def test_the_memory_of_items_is_bounded_whatever_their_json_is(value: str) -> None:
    """In memory a small value has many times the bytes that it has in JSON."""
    size, values = 4 << 20, ",".join([value] * 1000)
    items = KeptItems(size)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            items.read("me", [b'{"n":%d,"values":[%s]}' % (number, values.encode())], "conversation")
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < size
