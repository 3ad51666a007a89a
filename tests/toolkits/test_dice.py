"""A toolkit of another package: found by the name of its module, and used in every API."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.tool_result import ToolResult
from antiphon.run.replay import ReplayLog, ToolResultEntry, read_entries
from antiphon.store.open import open_store
from antiphon.toolkits.registry import Toolkits, built_in, find, names
from tests.acting import TakingTurns
from tests.apis.messages.support import check_stream as check_message
from tests.apis.messages.support import request
from tests.app import support
from tests.http.api import client, prompt_of, text_of
from tests.response_invariants import check, read_events, read_sse
from tests.server import NO_TLS, Running, running
from tests.server_process import START_SECONDS, serving
from tests.toolkits import dice
from tests.toolkits.dice import COLOUR, Dice, DicePresenter, Rolled

MODULE = "tests.toolkits.dice"
DICE = find(MODULE)


class Shown(Struct, frozen=True):
    """How its calls are shown, and what a model reads of them in the next request."""

    toolkits: Toolkits
    item: dict[str, Any]
    read: str


GENERIC = Shown(
    built_in(),
    {
        "type": "mcp_call",
        "status": "completed",
        "server_label": "dice",
        "name": "roll",
        "arguments": '{"sides": 6}',
        "output": "roll 1: 4",
        "error": None,
        "approval_request_id": None,
    },
    "roll 1: 4",
)
OWN = Shown(
    Toolkits([*map(find, names()), DICE]),
    {"type": "dice_call", "status": "completed", "sides": 6, "eyes": 4},
    "It was 4.",
)
TOOLS = [{"type": "dice"}]


def call(name: str = "roll") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"sides": 6}}}}\n</tool_call>'


@pytest.fixture(params=[GENERIC, OWN], ids=["generic", "own"])
def shown(request: pytest.FixtureRequest) -> Shown:
    found: Shown = request.param
    return found


@pytest_asyncio.fixture
async def server(shown: Shown) -> AsyncIterator[Running]:
    engine = TakingTurns(call(), "You rolled 4.", "Again 4.")
    async with running(engine, tools=[Dice()], toolkits=shown.toolkits) as server:
        yield server


async def post(server: Running, path: str, body: Mapping[str, Any], status: int = 200) -> Any:
    async with client(server) as api:
        response = await api.http.post(path, json={"model": "scripted", **body})
    assert response.status_code == status, response.text
    return read_sse(response.content) if body.get("stream") else response.json()


def bare(response: Any) -> list[Any]:
    return [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]


async def test_a_response_whole_streamed_and_stored(server: Running, shown: Shown) -> None:
    body = {"input": "Roll!", "tools": TOOLS}

    whole = await post(server, "/responses", body)
    streamed = check(await post(server, "/responses", {**body, "stream": True}))

    assert bare(whole) == bare(streamed)
    assert bare(whole)[0] == shown.item
    assert text_of(whole) == "You rolled 4."
    async with client(server) as api:
        for response in (whole, streamed):
            assert (await api.http.get(f"/responses/{response['id']}")).json() == response


async def test_a_background_response(server: Running, shown: Shown) -> None:
    queued = await post(server, "/responses", {"input": "Roll!", "tools": TOOLS, "background": True})

    async with client(server) as api:
        response = await api.http.get(f"/responses/{queued['id']}?stream=true")

    assert bare(check(read_sse(response.content)))[0] == shown.item


@pytest.mark.parametrize("with_items", [False, True])
async def test_a_response_that_is_continued(server: Running, shown: Shown, with_items: bool) -> None:
    first = await post(server, "/responses", {"input": "Roll!", "tools": TOOLS})

    if with_items:
        again: dict[str, Any] = {"input": [{"role": "user", "content": "Roll!"}, *first["output"]]}
        again["input"].append({"role": "user", "content": "Again!"})
    else:
        again = {"previous_response_id": first["id"], "input": "Again!"}
    second = await post(server, "/responses", {**again, "tools": TOOLS})

    assert text_of(second) == "Again 4."
    assert shown.read in prompt_of(server)
    assert '"name": "roll"' in prompt_of(server)


async def test_a_conversation(server: Running, shown: Shown) -> None:
    conversation = await post(server, "/conversations", {})

    await post(server, "/responses", {"conversation": conversation["id"], "input": "Roll!", "tools": TOOLS})
    await post(server, "/responses", {"conversation": conversation["id"], "input": "Again!", "tools": TOOLS})

    assert shown.read in prompt_of(server)


async def test_a_conversation_takes_its_items(server: Running, shown: Shown) -> None:
    roll = {key: value for key, value in shown.item.items() if value is not None}

    conversation = await post(server, "/conversations", {"items": [{"role": "user", "content": "Hi"}, roll]})

    async with client(server) as api:
        items = (await api.http.get(f"/conversations/{conversation['id']}/items")).json()["data"]
    assert roll.items() <= items[0].items()


async def test_chat_whole_and_streamed(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Roll!"}], "tools": TOOLS}

    whole = await post(server, "/chat/completions", body)
    async with client(server) as api:
        stream = await api.http.post("/chat/completions", json={"model": "scripted", **body, "stream": True})

    assert whole["choices"][0]["message"]["content"] == "You rolled 4."
    chunks = [json.loads(line[6:]) for line in stream.text.split("\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "You rolled 4."


async def test_it_is_chosen_by_its_type_and_refuses_settings(server: Running) -> None:
    chosen = {"input": "Roll!", "tools": TOOLS, "tool_choice": {"type": "dice_preview"}}
    assert text_of(await post(server, "/responses", chosen)) == "You rolled 4."

    error = await post(server, "/responses", {"input": "Hi", "tools": [{"type": "dice", "label": 3}]}, 400)
    assert error["error"]["param"] == "tools[0].label"


async def test_two_dice_do_not_collide() -> None:
    dice = Dice()
    tools = [{"type": "dice", "label": "red"}, {"type": "dice", "label": "blue"}]
    engine = TakingTurns(f"{call('red__roll')}\n{call('blue__roll')}\n{call('red__roll')}", "Done.")
    async with running(engine, tools=[dice]) as server:
        response = await post(server, "/responses", {"input": "Roll!", "tools": tools})

    calls = response["output"][:-1]
    assert [call["server_label"] for call in calls] == ["red", "blue", "red"]
    assert [call["output"] for call in calls] == ["roll 1 of red: 4", "roll 1 of blue: 4", "roll 2 of red: 4"]
    assert dice.opened == tools


def test_presenters_of_the_same_items_are_refused_at_start() -> None:
    with pytest.raises(ValueError, match="which others show"):
        Toolkits([DICE, replace(DICE, type="cards", presenter=type("Cards", (DicePresenter,), {}))])


# Messages

TABLETOP = [{"type": "tabletop_20260101", "name": "dice"}]


async def message(server: Running, messages: Any, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=20) as http:
        response = await http.post("/v1/messages", json=request(messages, **fields))
    assert response.status_code == 200, response.text
    return response


async def test_a_message_whole_streamed_and_continued() -> None:
    engine = TakingTurns(call(), "You rolled 4.", "Again 4.")
    async with running(engine, tools=[Dice()], toolkits=OWN.toolkits) as server:
        whole = (await message(server, "Roll!", tools=TABLETOP)).json()["content"]
        streamed = await message(server, "Roll!", tools=TABLETOP, stream=True)
        asked = [
            {"role": "user", "content": "Roll!"},
            {"role": "assistant", "content": whole},
            {"role": "user", "content": "Again!"},
        ]
        again = (await message(server, asked, tools=TABLETOP)).json()["content"]
        prompt = prompt_of(server)

    use, result, text = whole
    assert (use["type"], use["name"], use["input"]) == ("server_tool_use", "dice_roll", {"sides": 6})
    assert result["type"] == "dice_roll_tool_result"
    assert result["content"] == {"type": "dice_roll_result", "eyes": 4}
    assert text["text"] == "You rolled 4."
    events = check_message(read_events(streamed.content), valid=False)
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == ["server_tool_use", "dice_roll_tool_result", "text"]
    assert begun[1]["content"] == result["content"]
    assert again[0]["text"] == "Again 4."
    assert "It was 4." in prompt


async def test_a_message_of_a_tool_without_a_view_has_blocks_of_mcp() -> None:
    async with running(TakingTurns(call(), "You rolled 4."), tools=[Dice()]) as server:
        blocks = (await message(server, "Roll!", tools=TOOLS)).json()["content"]

    assert [block["type"] for block in blocks] == ["mcp_tool_use", "mcp_tool_result", "text"]


# What is included


async def test_its_presenter_says_what_may_be_included() -> None:
    asked = {"input": "Roll!", "tools": TOOLS, "include": [COLOUR]}
    async with running(TakingTurns(call(), "4."), tools=[Dice()], toolkits=OWN.toolkits) as server:
        response = await post(server, "/responses", asked)
    async with running(TakingTurns(call(), "4."), tools=[Dice()]) as server:
        error = await post(server, "/responses", asked, 400)

    assert response["output"][0]["colour"] == "white"
    assert error["error"]["param"] == "include[0]"


# What is stored


def script(delay: float = 0) -> list[dict[str, Any]]:
    return [{"when": "roll 1: 4", "output": "You rolled 4.", "delay_ms": delay}, {"output": call()}]


async def test_another_server_continues_after_a_result_with_its_details() -> None:
    store, stored = await open_store("memory"), {"lease_seconds": 0.05, "toolkits": OWN.toolkits}
    try:
        async with support.serving(store, script(60_000), tools=[Dice(4)], **stored) as first:
            await support.queue(first.app, "Roll!", tools=TOOLS)
            async with asyncio.timeout(20):
                while not any(b'"eyes":4' in line for line in await support.log_of(store)):
                    await asyncio.sleep(0.01)
            await first.die()
        async with support.serving(store, script(), tools=[Dice(5)], **stored):
            assert (await support.ended(store)).status == "completed"
        response = check(await support.log_of(store))
    finally:
        await store.close()

    assert bare(response)[0] == OWN.item
    assert text_of(response) == "You rolled 4."


async def test_a_stored_response_can_be_read_and_continued_where_the_toolkit_is_gone(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store'}"
    engine = TakingTurns(call(), "You rolled 4.", "Again 4.")
    async with running(engine, tools=[Dice()], toolkits=OWN.toolkits, store=store) as server:
        first = await post(server, "/responses", {"input": "Roll!", "tools": TOOLS})
    async with running(TakingTurns("-", "Nothing to roll."), store=store) as server:
        async with client(server) as api:
            assert (await api.http.get(f"/responses/{first['id']}")).json() == first
            items = (await api.http.get(f"/responses/{first['id']}/input_items")).json()["data"]
        second = await post(server, "/responses", {"previous_response_id": first["id"], "input": "Again!"})

    assert [item["type"] for item in items] == ["message"]
    assert text_of(second) == "Nothing to roll."


def entry(details: Any) -> ToolResultEntry:
    return ToolResultEntry(ToolResult("roll 1: 4", details), 0.5, 0)


def stored_entry(details: Any) -> bytes:
    log = ReplayLog()
    log.write(entry(details))
    return log.new()


class Thrown(Struct, frozen=True, tag="rolled"):
    """Details of the same tag, with other fields."""

    number: int


@pytest.mark.parametrize(
    ("details", "read"),
    [
        (None, None),
        (Rolled(4), Rolled(4)),
        (Thrown(4), {"type": "rolled", "number": 4}),
        ({"type": "gone", "number": 4}, {"type": "gone", "number": 4}),
        ({"number": 4}, {"number": 4}),
    ],
)
def test_details_that_are_not_known_any_more_stay_as_they_were_stored(details: Any, read: Any) -> None:
    known = {**built_in().details, **Toolkits([DICE]).details}

    assert read_entries([stored_entry(details)], known) == [entry(read)]


# The command line


def test_antiphon_serve_finds_it_by_its_module(tmp_path: Path) -> None:
    lines = tmp_path / "script.jsonl"
    lines.write_text(
        "\n".join(json.dumps(line) for line in [{"when": "roll 1: 6", "output": "Six!"}, {"output": call()}])
    )
    options = ("--engine", "scripted", "--script", str(lines), "--dialect", "hermes", "--store", "memory")
    with serving(tmp_path, *options, "--port", "0", "--tool", MODULE, "--dice-eyes", "6") as server:
        asked = {"model": "scripted", "input": "Roll!", "tools": TOOLS}
        response = httpx.post(f"{server.url}/v1/responses", json=asked, timeout=START_SECONDS, verify=NO_TLS)

    assert bare(response.json())[0] == {**OWN.item, "eyes": 6}
    assert text_of(response.json()) == "Six!"


# Toolkits that collide


def test_two_toolkits_that_store_details_of_one_tag_are_refused_at_start() -> None:
    other = replace(DICE, type="cards", presenter=type("Cards", (DicePresenter,), {"type": "cards_call"}))

    with pytest.raises(ValueError, match="have the tag 'rolled'"):
        Toolkits([DICE, replace(other, details=(Thrown,), message_view=None)])
    with pytest.raises(ValueError, match="blocks of the name 'dice_roll'"):
        Toolkits(
            [
                DICE,
                replace(
                    other,
                    details=(),
                    message_view=type("Cards", (type(DICE.message_view),), {"type": "cards"})(),
                ),
            ]
        )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (int, "The options of the tool tests.toolkits.dice are no dataclass."),
        ("DiceOptions", "The options of the tool tests.toolkits.dice are no dataclass."),
        (make_dataclass("Eyes", [("eyes", "Unknown", 6)]), "cannot be read: name 'Unknown' is not defined."),
    ],
)
def test_options_that_no_command_can_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: Any, why: str
) -> None:
    monkeypatch.setattr(dice, "TOOLKIT", replace(DICE, options=options))
    with pytest.raises(ValueError, match=why):
        find("tests.toolkits.dice")


@pytest.mark.parametrize("name", ["nowhere", "tests.nowhere", "tests.toolkits.parts", "", ".", "json"])
def test_there_is_no_toolkit_of_other_names(name: str) -> None:
    with pytest.raises(ValueError, match="There is no tool"):
        find(name)
