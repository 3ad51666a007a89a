"""Input for a background response that is being answered: over HTTP, on any server, also after a takeover."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from antiphon.core.limits import Limits
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from tests.acting import ActingTool
from tests.http.api import Api, client, text_of, user
from tests.media import data_url, png
from tests.server import Running, running
from tests.steering import Halting

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
PROGRAM = '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>'
OWN = {"type": "function", "name": "f", "parameters": {"type": "object"}}
PROGRAMS = {"type": "code_interpreter", "container": {"type": "auto"}}
RAN = ToolResult("42\n", ProgramDetails("42\n"))
STEER = "Rather in French."
OPTIONS: dict[str, Any] = {"limit": Limits(pending_steers=3), "jobs": 4}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(Halting(), tools=[ActingTool(results=[RAN])], **OPTIONS) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


async def begun(server: Running, api: Api, *outputs: str, after: int = 3, **more: Any) -> str:
    """The id of a background response that has halted after so many tokens."""
    server.engine.says(*outputs, after=after)
    response = await api.create("Hi", background=True, **more)
    await server.engine.reached()
    return str(response["id"])


async def steer(api: Api, response_id: str, given: Any = STEER, status: int = 200) -> Any:
    return await api.post(f"/responses/{response_id}/steer", {"input": given}, status)


async def test_it_ends_and_the_next_one_has_the_input(server: Running, api: Api) -> None:
    first = await begun(server, api, "Hello there", "Oui.", temperature=0.25, metadata={"a": "b"})
    taken = await steer(api, first)
    assert taken["object"] == "response.steer"
    assert (taken["previous_response_id"], taken["id"][:6]) == (first, "steer_")
    waiting = await api.get(f"/responses/{taken['response_id']}")
    ended = await api.finished(first)
    second = await api.finished(taken["response_id"])

    assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "steered"})
    assert text_of(ended) == "Hel"
    assert waiting["previous_response_id"] == second["previous_response_id"] == first
    assert (second["status"], text_of(second), second["background"]) == ("completed", "Oui.", True)
    assert (second["temperature"], second["metadata"]) == (0.25, {"a": "b"})
    prompts = [generation.prompt.text for generation in server.engine.seen]
    assert prompts[1].startswith(prompts[0] + "Hel")
    assert STEER in prompts[1]
    items = await api.get(f"/responses/{taken['response_id']}/input_items")
    assert [item["content"][0]["text"] for item in items["data"]] == [STEER]
    for response in (ended, second):
        assert await api.events(response["id"])
    listed = await api.get("/responses", background="true")
    assert {entry["id"] for entry in listed["data"]} == {first, taken["response_id"]}


async def test_before_a_worker_has_it() -> None:
    """All places are taken: the response waits, and so does its input."""
    async with running(Halting(), jobs=1) as busy, client(busy) as other:
        first = await begun(busy, other, "One", "Two", "Three", after=1)
        queued = await other.create("Later", background=True)
        taken = await steer(other, queued["id"])
        busy.engine.go.set()
        await other.finished(first)
        ended = await other.finished(queued["id"])
        assert (ended["status"], ended["output"]) == ("incomplete", [])
        second = await other.finished(taken["response_id"])
        assert text_of(second)
        assert "Later" in busy.engine.seen[-1].prompt.text
        assert len(busy.engine.seen) == 2  # of the one that was steered, nothing was generated


async def test_again_and_again(server: Running, api: Api) -> None:
    """Each input has a response; the last of them is answered. There is a limit."""
    first = await begun(server, api, PROGRAM, "Oui.", after=len(PROGRAM) - 3, tools=[PROGRAMS])
    taken = [await steer(api, first, text) for text in ("first thing", "second thing", "third thing")]
    chain = [first, *(each["response_id"] for each in taken)]
    assert [each["previous_response_id"] for each in taken] == chain[:-1]
    refused = await steer(api, first, "fourth thing", 400)
    assert refused["error"]["code"] == "too_many_pending_steers"
    assert "pending_steers" in refused["error"]["message"]
    server.engine.go.set()
    responses = [await api.finished(response_id) for response_id in chain]
    assert [response["status"] for response in responses] == ["incomplete"] * 3 + ["completed"]
    assert [item["type"] for item in responses[0]["output"]] == ["code_interpreter_call"]
    prompt = server.engine.seen[-1].prompt.text
    assert prompt.index("first thing") < prompt.index("second thing") < prompt.index("third thing")
    assert len(server.engine.seen) == 2


@pytest.mark.parametrize("named", ["first", "second"])
@pytest.mark.parametrize("early", [True, False])
async def test_input_waits_for_the_outputs_of_calls(
    server: Running, api: Api, named: str, early: bool
) -> None:
    first = await begun(server, api, CALL, "Warm.", after=len(CALL) - 3, tools=[OWN])
    taken = await steer(api, first)
    last = await steer(api, first, "In one word.") if named == "second" else taken
    server.engine.go.set()
    ended = await api.finished(first)
    [call] = ended["output"]
    stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "f"}
    if not early:
        second = await api.finished(last["response_id"])
        assert (second["status"], second["required_input"]) == ("incomplete", [stub])
        assert second["incomplete_details"] == {"reason": "waiting_for_required_input"}
        assert second["output"] == []
    previous = first if named == "first" else last["response_id"]
    if early:
        await api.finished(last["response_id"])
    whole = await api.create([stub | {"output": "seven"}], previous_response_id=previous)
    assert (whole["status"], text_of(whole)) == ("completed", "Warm.")
    assert whole["previous_response_id"] == last["response_id"]
    assert bool(whole.get("notes")) == (named == "first")
    prompt = server.engine.seen[-1].prompt.text
    assert prompt.index("seven") < prompt.index(STEER)


@pytest.mark.parametrize("end", ["cancelled", "deleted", "failed"])
async def test_without_the_first_there_is_no_next(server: Running, api: Api, end: str) -> None:
    first = await begun(server, api, CALL, "never", after=len(CALL) - 9, tools=[OWN])
    if end == "failed":
        server.engine.says(CALL, "never", after=len(CALL) - 9, fails=len(CALL) - 8)
        await api.post(f"/responses/{first}/cancel", {})
        first = str((await api.create("Hi", background=True, tools=[OWN]))["id"])
        await server.engine.reached()
    taken = await steer(api, first)
    if end == "cancelled":
        await api.post(f"/responses/{first}/cancel", {})
    elif end == "deleted":
        await api.delete(f"/responses/{first}")
    else:
        server.engine.go.set()
        assert (await api.finished(first))["status"] == "failed"
    second = await api.finished(taken["response_id"])
    assert second["status"] == ("cancelled" if end == "cancelled" else "failed")
    if end != "cancelled":
        assert first in second["error"]["message"]


async def test_the_next_one_can_be_cancelled_while_it_waits(server: Running, api: Api) -> None:
    first = await begun(server, api, CALL, after=len(CALL) - 9, tools=[OWN])
    taken = await steer(api, first)
    cancelled = await api.post(f"/responses/{taken['response_id']}/cancel", {})
    assert cancelled["status"] == "cancelled"
    server.engine.go.set()
    assert (await api.finished(first))["status"] == "completed"


async def test_refusals(server: Running, api: Api) -> None:
    first = await begun(server, api, "Hello", after=2)
    for given, param in (("", "input"), ([user("x") | {"role": "system"}], "input[0].role"), (7, "input")):
        refused = await steer(api, first, given, 400)
        assert refused["error"]["param"] == param
    for body, param in (({}, "input"), ({"input": "x", "stream": True}, "stream")):
        assert (await api.post(f"/responses/{first}/steer", body, 400))["error"]["param"] == param
    missing = await steer(api, "resp_none", status=404)
    assert missing["error"]["code"] == "response_not_found"
    server.engine.go.set()
    await api.finished(first)
    done = await steer(api, first, status=400)
    assert done["error"]["code"] == "response_already_completed"
    front = await api.create("Hi")
    assert (await steer(api, front["id"], status=400))["error"]["code"] == "steering_not_supported"


@pytest.mark.parametrize("how", ["conversation", "compaction"])
async def test_some_cannot_be_steered(server: Running, api: Api, how: str) -> None:
    more: dict[str, Any] = {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]}
    if how == "conversation":
        more = {"conversation": (await api.conversation()).rpartition("/")[2]}
    first = await begun(server, api, "Hello", after=2, **more)
    assert (await steer(api, first, status=400))["error"]["code"] == "steering_not_supported"
    server.engine.go.set()
    assert (await api.finished(first))["status"] == "completed"


async def test_an_image_is_kept_as_one(server: Running, api: Api) -> None:
    first, url = await begun(server, api, "Hello there", "Oui."), data_url(png())
    parts = [{"type": "input_text", "text": "See:"}, {"type": "input_image", "image_url": url}]
    taken = await steer(api, first, [{"role": "user", "content": parts}])
    await api.finished(taken["response_id"])
    items = await api.get(f"/responses/{taken['response_id']}/input_items")
    assert items["data"][0]["content"][1]["image_url"] == url


# On another server


async def test_any_server_of_the_database_takes_it(tmp_path: Path) -> None:
    """One answers, another gets the input; the next one is answered by either of them."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with (
        running(Halting(), store=url, **OPTIONS) as working,
        client(working) as api,
    ):
        first = await begun(working, api, "Hello there", "Oui.")
        async with running(Halting(), store=url, **{**OPTIONS, "jobs": 1}) as other, client(other) as second:
            other.worker.drain()
            taken = await steer(second, first)
            assert text_of(await api.finished(first)) == "Hel"
            assert text_of(await second.finished(taken["response_id"])) == "Oui."


async def test_after_a_takeover(tmp_path: Path) -> None:
    """A server stops in the middle. The one that goes on ends the answer, for input that came meanwhile."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with running(Halting(), store=url, **OPTIONS) as first, client(first) as api:
        response_id = await begun(first, api, "Hello there", after=3)
        await first.worker.release()
        taken = await steer(api, response_id)
        engine = Halting()
        engine.says("Oui.")
        async with running(engine, store=url, **OPTIONS) as second, client(second) as other:
            ended = await other.finished(response_id)
            assert ended["incomplete_details"] == {"reason": "steered"}
            text = text_of(ended) if ended["output"] else ""
            assert "Hel".startswith(text)
            assert text_of(await other.finished(taken["response_id"])) == "Oui."
            [request] = second.engine.seen
            assert text + "<|im_end|>" in request.prompt.text
            assert STEER in request.prompt.text
