"""A tool of one's own, in one file: what it does, how its calls are shown, and its use in every API."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.presenters.presenter import Presenter, output_item
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.registry import Toolkits
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.tool import ToolOffer, WantedTool
from tests.acting import TakingTurns
from tests.http.api import client, prompt_of, text_of
from tests.response_invariants import check, read_sse
from tests.server import Running, running

# The tool


class Rolled(Struct, frozen=True, tag="rolled"):
    """What a presenter is told of a roll."""

    eyes: int


class Dice:
    """Rolls a die: a request may have several, each with its own number of sides."""

    type = "dice"
    aliases = ("dice_preview",)

    def __init__(self) -> None:
        self.opened: list[Mapping[str, Any]] = []

    async def offer(self, wanted: WantedTool) -> ToolOffer:
        label = wanted.settings.get("label", "")
        if not isinstance(label, str):
            raise RequestError("Expected a string.", param=f"{wanted.where}.label")
        hosted = Hosted("dice", "roll", label=label)
        return ToolOffer((Function("roll", "Rolls a die.", {"type": "object"}, hosted=hosted),))

    def open(self, wanted: WantedTool) -> "Cup":
        self.opened.append(wanted.settings)
        return Cup(wanted.settings.get("label", ""))

    async def close(self) -> None: ...


class Cup:
    """A session: it counts its rolls."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._rolls = 0

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        self._rolls += 1
        text = f"roll {self._rolls}{self._label and ' of ' + self._label}: 4"
        return ToolResult(text, Rolled(4))

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        self._rolls += 1

    async def close(self) -> None: ...


# How its calls are shown


class DiceCall(Struct, tag_field="type", tag="dice_call"):
    """A roll, and what it came to."""

    id: str
    status: str
    sides: int | None
    eyes: int | None = None


class DicePresenter(Presenter):
    """Shows rolls as items of a type of their own."""

    type = "dice_call"

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        arguments = json.dumps({"sides": item.value.get("sides")})
        yield FunctionCall(item.text("id"), tools.offered("dice").name, arguments)
        yield output_item(item.text("id"), f"It was {item.value.get('eyes')}.")

    def item(self, status: str) -> DiceCall:
        sides = (object_in(self.text) or {}).get("sides")
        call = DiceCall(self.position.id, self.status_of(status), sides)
        if self.result is not None and isinstance(self.result.details, Rolled):
            call.eyes = self.result.details.eyes
        return call


DICE = Toolkit(type="dice", options=Any, remedy="Buy some.", presenter=DicePresenter, details=(Rolled,))


# Its use


class Shown(Struct, frozen=True):
    """How its calls are shown, and what a model reads of them in the next request."""

    toolkits: Toolkits
    item: dict[str, Any]
    read: str


GENERIC = Shown(
    Toolkits(()),
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
    Toolkits([DICE]),
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
