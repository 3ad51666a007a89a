"""Input for a response that is being answered, on a WebSocket: where it ends, and what follows it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from openai import AsyncOpenAI
from openai.types.responses import (
    ResponseSteerAcceptedEvent,
    ResponseSteerFailedEvent,
    ResponseSteerPendingEvent,
)

from antiphon.core.call_results import NO_RESULT, STARTED
from antiphon.core.limits import Limits
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from tests.acting import ActingTool
from tests.http.api import client
from tests.response_invariants import TERMINAL
from tests.search import examples
from tests.server import Running, running
from tests.steering import Event, Halting, Talk, talking

OWN = {"type": "function", "name": "f", "parameters": {"type": "object"}}
PROGRAMS = {"type": "code_interpreter", "container": {"type": "auto"}}
RAN = ToolResult("42\n", ProgramDetails("42\n"))
STEER = "Rather in French."


class Family(Struct, frozen=True):
    """How the models of a family write each part of an answer, and how the rest is joined."""

    dialect: str
    reasoning: str
    text: str
    call: str
    program: str
    end: str = ""
    between: str = ""

    def written(self, *parts: str) -> str:
        """An answer with these parts."""
        return self.between.join(getattr(self, part) for part in parts) + self.end


FAMILIES = [
    Family(
        "hermes",
        "<think>Well, well.</think>",
        "Here it is.",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>',
    ),
    Family(
        "openai",
        "<|channel|>analysis<|message|>Well, well.",
        "<|channel|>final<|message|>Here it is.",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        "<|channel|>analysis to=python code<|message|>6 * 7<|call|>",
        between="<|end|><|start|>assistant",
    ),
    Family(
        "qwen3_coder",
        "<think>Well, well.</think>",
        "Here it is.",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=python>\n<parameter=code>\n6 * 7\n</parameter>\n</function>\n</tool_call>",
    ),
]


EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.dialect, indirect=True)


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = getattr(request, "param", FAMILIES[0])
    return found


@pytest.fixture
def tool() -> ActingTool:
    return ActingTool(results=[RAN])


@pytest_asyncio.fixture
async def server(family: Family, tool: ActingTool) -> AsyncIterator[Running]:
    limits = Limits(pending_steers=2, socket_lanes=2)
    parts = {"dialect": family.dialect, "date": "2025-06-28", "tools": [tool], "limit": limits}
    async with running(Halting(), **parts) as server:
        yield server


@pytest_asyncio.fixture
async def talk(server: Running) -> AsyncIterator[Talk]:
    async with talking(server) as talk:
        yield talk


def texts(response: Event, type_: str) -> str:
    """The text of all items of a type."""
    items = [item for item in response["output"] if item["type"] == type_]
    return "".join(part["text"] for item in items for part in item["content"])


def kinds(response: Event) -> list[str]:
    return [item["type"] for item in response["output"]]


async def steered_after(
    server: Running, talk: Talk, chunks: int, *outputs: str, given: Any = STEER, **more: Any
) -> tuple[Event, Event]:
    """A response that is steered after so many chunks, and what comes after its end: another, or an event."""
    engine: Halting = server.engine
    engine.says(*outputs, after=chunks)
    await talk.create("Hi", store=False, request_id=f"at-{chunks}", **more)
    await engine.reached()
    await talk.steer(f"resp_at-{chunks}", given)
    begun = await talk.until("response.steer.accepted")
    accepted = begun.pop()
    ResponseSteerAcceptedEvent.model_validate(accepted)
    assert accepted["steer"]["previous_response_id"] == f"resp_at-{chunks}"
    assert accepted["sequence_number"] == max([event["sequence_number"] for event in begun], default=0)
    engine.go.set()
    first = await talk.response(begun)
    event = await talk.next()
    if event["type"] == "response.created":
        return first, await talk.response([event])
    return first, event


@pytest.mark.parametrize("parts", [("text",), ("reasoning", "text")])
@EACH_FAMILY
async def test_whatever_was_written_is_kept(
    server: Running, talk: Talk, family: Family, parts: tuple[str, ...]
) -> None:
    """At every token: what is shown is the beginning of the answer, and what follows reads all of it."""
    written = family.written(*parts)
    shown = ""
    for chunks in range(len(written)):
        first, second = await steered_after(server, talk, chunks, written, "Oui.")

        assert second["previous_response_id"] == first["id"]
        reasoning, text = texts(first, "reasoning"), texts(first, "message")
        assert "Well, well.".startswith(reasoning)
        assert "Here it is.".startswith(text)
        assert shown in reasoning + text
        shown = reasoning + text
        if first["status"] == "incomplete":
            assert first["incomplete_details"] == {"reason": "steered"}
            whole = not text and reasoning == "Well, well."
            assert {item["status"] for item in first["output"][-1:]} <= {"incomplete", *["completed"][:whole]}
        else:
            assert (first["status"], text) == ("completed", "Here it is.")
        before, after = (
            [generation.prompt.text for generation in server.engine.seen][-2:] if chunks else ("", "")
        )
        if chunks and text and parts == ("text",) and family.dialect != "openai":
            assert after.startswith(before + text)
        assert STEER in server.engine.seen[-1].prompt.text
        assert texts(second, "message")
    assert shown[-5:] in "Here it is."
    assert shown.startswith("Well" if "reasoning" in parts else "Here")


@EACH_FAMILY
async def test_at_once_in_a_text(server: Running, talk: Talk, family: Family) -> None:
    written = family.written("text")
    before = written.index("Here it")
    first, _ = await steered_after(server, talk, before + 7, written, "Oui.")
    assert (first["status"], texts(first, "message")) == ("incomplete", "Here it")
    assert first["usage"]["output_tokens"] >= 7


@EACH_FAMILY
async def test_before_the_first_token_nothing_is_generated(server: Running, talk: Talk) -> None:
    first, second = await steered_after(server, talk, 0, "never", "Oui.")
    assert (first["status"], first["output"], first["usage"]["output_tokens"]) == ("incomplete", [], 0)
    assert second["status"] == "completed"


@EACH_FAMILY
async def test_a_call_is_finished_and_the_input_waits_for_its_output(
    server: Running, talk: Talk, family: Family
) -> None:
    written = family.written("call")
    for chunks in range(written.index("f") + 2, len(written)):
        first, pending = await steered_after(server, talk, chunks, written, "Oui.", tools=[OWN])
        [call] = first["output"]
        assert (first["status"], call["status"]) == ("completed", "completed")
        assert json.loads(call["arguments"]) in ({"a": 1}, {"a": "1"})
        ResponseSteerPendingEvent.model_validate(pending)
        stub = {"type": "function_call_output", "call_id": call["call_id"], "name": "f"}
        assert (pending["type"], pending["required_input"]) == ("response.steer.pending", [stub])
        assert pending["reason"] == "waiting_for_required_input"

        await talk.create(
            [{**stub, "output": "seven"}], previous_response_id=first["id"], store=False, tools=[OWN]
        )
        second = await talk.response()
        prompt = server.engine.seen[-1].prompt.text
        assert texts(second, "message")
        assert prompt.index("seven") < prompt.index(STEER)


@EACH_FAMILY
async def test_the_output_of_a_call_that_nobody_waits_for_may_come_later(
    server: Running, talk: Talk, family: Family
) -> None:
    written, tools = family.written("call"), [OWN | {"async": True}]
    first, second = await steered_after(server, talk, len(written) - 3, written, "Oui.", tools=tools)
    [call] = first["output"]
    assert call["async"] is True
    assert (second["status"], second.get("notes")) == ("completed", None)
    prompt = server.engine.seen[-1].prompt.text
    assert prompt.index(STARTED) < prompt.index(STEER)
    assert NO_RESULT not in prompt

    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "seven"}
    await talk.create([output], previous_response_id=second["id"], store=False, tools=tools)
    assert (await talk.response())["status"] == "completed"
    later = server.engine.seen[-1].prompt.text
    assert later.index(STEER) < later.index("seven")
    if family.dialect == "hermes":
        assert later.startswith(prompt)


@EACH_FAMILY
async def test_the_servers_calls_run_and_the_next_round_does_not(
    server: Running, talk: Talk, family: Family, tool: ActingTool
) -> None:
    written = family.written("program")
    for chunks in range(written.index("python") + 7, len(written), 3):
        tool.done.clear()
        first, second = await steered_after(server, talk, chunks, written, "Oui.", tools=[PROGRAMS])
        assert (first["status"], first["incomplete_details"]) == ("incomplete", {"reason": "steered"})
        assert [(item["type"], item["status"]) for item in first["output"]] == [
            ("code_interpreter_call", "completed")
        ]
        assert len([done for done in tool.done if done[0] == "python"]) == 1
        prompt = server.engine.seen[-1].prompt.text
        assert "42" in prompt
        assert STEER in prompt
        assert texts(second, "message")


async def test_while_a_tool_runs(server: Running, talk: Talk, family: Family, tool: ActingTool) -> None:
    server.engine.says(family.written("program"), "Oui.")
    release = asyncio.Event()

    async def held() -> ToolResult:
        tool.running.set()
        await release.wait()
        return RAN

    tool.next = held  # type: ignore[method-assign]
    await talk.create("Hi", tools=[PROGRAMS])
    [created] = await talk.until("response.created")
    async with asyncio.timeout(10):
        await tool.running.wait()
    await talk.steer(created["response"]["id"], STEER)
    begun = await talk.until("response.steer.accepted")
    release.set()
    first = await talk.response([created, *begun[:-1]])
    assert (first["status"], kinds(first)) == ("incomplete", ["code_interpreter_call"])
    second = await talk.response()
    assert (second["previous_response_id"], second["status"]) == (first["id"], "completed")


# Settings, and what follows


async def test_the_next_one_has_the_same_settings_and_all_input(server: Running, talk: Talk) -> None:
    settings = {"temperature": 0.25, "instructions": "Be brief.", "metadata": {"a": "b"}, "tools": [OWN]}
    server.engine.says("abc", "Oui.", after=1)
    await talk.create("Hi", **settings)
    await server.engine.reached()
    begun = [await talk.next()]
    picture = [{"type": "input_text", "text": "and a second thing"}]
    await talk.steer(begun[0]["response"]["id"], STEER)
    await talk.until("response.steer.accepted")
    first_id = begun[0]["response"]["id"]
    await talk.steer(first_id, [{"role": "user", "content": picture}])
    events = await talk.until("response.completed")
    second = events[-1]["response"]
    assert {name: second[name] for name in ("temperature", "instructions", "metadata")} == {
        name: settings[name] for name in ("temperature", "instructions", "metadata")
    }
    prompt = server.engine.seen[-1].prompt.text
    assert STEER in prompt
    late = [event for event in events if event["type"] == "response.steer.failed"]
    assert ("second thing" in prompt) != bool(late)


@EACH_FAMILY
async def test_several_inputs_are_one_turn_in_their_order(
    server: Running, talk: Talk, family: Family
) -> None:
    """While a call is written, more may come; beyond the limit it is refused, and nothing is lost."""
    written = family.written("program")
    server.engine.says(written, "Oui.", after=len(written) - 3)
    await talk.create("Hi", store=False, request_id="several", tools=[PROGRAMS])
    await server.engine.reached()
    for text in ("first thing", "second thing", "third thing"):
        await talk.steer("resp_several", text)
    events = await talk.until("response.steer.failed")
    failed = events[-1]
    ResponseSteerFailedEvent.model_validate(failed)
    assert failed["error"]["code"] == "too_many_pending_steers"
    assert "pending_steers" in failed["error"]["message"]
    assert failed["steer"] == {"input": "third thing", "previous_response_id": "resp_several"}
    server.engine.go.set()
    await talk.response([event for event in events if not event["type"].startswith("response.steer")])
    second = await talk.response()
    prompt = server.engine.seen[-1].prompt.text
    assert prompt.index("first thing") < prompt.index("second thing")
    assert "third thing" not in prompt
    assert second["status"] == "completed"
    assert len(server.app.socket_bytes) == 1


async def test_a_successor_that_cannot_be_made_returns_the_input(server: Running, talk: Talk) -> None:
    missing = [
        {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file_missing"}]}
    ]
    first, error = await steered_after(server, talk, 2, "abcdef", "Oui.", given=missing)
    assert first["status"] == "incomplete"
    assert error["type"] == "error"
    failed = await talk.next()
    ResponseSteerFailedEvent.model_validate(failed)
    assert (failed["error"]["code"], failed["steer"]["input"]) == ("successor_creation_failed", missing)
    assert failed["steer"]["id"].startswith("steer_")


async def test_an_answer_that_fails_returns_the_input(server: Running, talk: Talk, family: Family) -> None:
    written = family.written("call")
    server.engine.says(written, after=len(written) - 20, fails=len(written) - 18)
    await talk.create("Hi", store=False, request_id="fails", tools=[OWN])
    await server.engine.reached()
    await talk.steer("resp_fails", STEER)
    begun = await talk.until("response.steer.accepted")
    server.engine.go.set()
    assert (await talk.response(begun[:-1]))["status"] == "failed"
    failed = await talk.next()
    assert (failed["type"], failed["error"]["code"]) == ("response.steer.failed", "successor_creation_failed")
    assert failed["steer"]["input"] == STEER


# Refusals


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("", "input"),
        ([], "input"),
        (["x"], "input[0]"),
        ([{"role": "system", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "input[0].type"),
        ([{"role": "user", "content": [{"type": "output_text", "text": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": "x", "phase": "final"}], "input[0].phase"),
        (7, "input"),
        (None, "input"),
    ],
)
async def test_invalid_input_is_named(talk: Talk, given: Any, param: str) -> None:
    await talk.steer("resp_x", given)
    failed = await talk.next()
    assert failed["error"]["code"] == "invalid_input"
    assert failed["error"]["type"] == "invalid_request_error"
    assert failed["steer"] == {"input": given, "previous_response_id": "resp_x"}
    assert param.partition("[")[0] in failed["error"]["message"]


@pytest.mark.parametrize("given", [b"1e999", b"9" * 400, b'"\xff"', b'"\\ud800"'])
async def test_what_cannot_be_read_is_told_and_the_others_go_on(
    server: Running, talk: Talk, given: bytes
) -> None:
    server.engine.says("abc", after=1)
    await talk.create("Hi")
    await server.engine.reached()
    message = b'{"type": "response.steer", "previous_response_id": "resp_x", "input": ' + given + b"}"
    await talk.socket.send(message)
    *_, told = await talk.until("response.steer.failed")
    server.engine.go.set()

    assert told["error"]["code"] == ("response_not_found" if b"ud800" in given else "invalid_input")
    await talk.until("response.completed")


async def test_a_steer_has_no_lane(talk: Talk) -> None:
    await talk.steer("resp_x", "Hi", stream_id="a")
    failed = await talk.next()
    assert (failed["error"]["code"], "stream_id" in failed["error"]["message"]) == ("invalid_input", True)


async def test_what_is_not_running_is_told_apart(server: Running, talk: Talk) -> None:
    server.engine.says("abc")
    await talk.create("Hi")
    whole = await talk.response()
    await talk.create("Hi", max_output_tokens=1)
    cut = await talk.response()
    for response_id, code in (
        (whole["id"], "response_already_completed"),
        (cut["id"], "response_not_active"),
        ("resp_unknown", "response_not_found"),
    ):
        await talk.steer(response_id, STEER)
        failed = await talk.next()
        ResponseSteerFailedEvent.model_validate(failed)
        assert failed["error"]["code"] == code


@pytest.mark.parametrize("how", ["conversation", "compaction", "warms"])
async def test_some_responses_cannot_be_steered(server: Running, talk: Talk, how: str) -> None:
    async with talking(server) as other:
        server.engine.says("abc", after=0 if how == "warms" else 2)
        more: dict[str, Any] = {"store": False, "request_id": "held"}
        if how == "compaction":
            more["context_management"] = [{"type": "compaction", "compact_threshold": 100_000}]
        elif how == "warms":
            more["generate"] = False
        else:
            conversation = await _conversation(server)
            more = {"conversation": conversation}
        await other.create("Hi", **more)
        await server.engine.reached()
        created = [] if how != "conversation" else await other.until("response.created")
        response_id = created[-1]["response"]["id"] if created else "resp_held"
        await other.steer(response_id, STEER)
        failed = (await other.until("response.steer.failed"))[-1]
        assert failed["error"]["code"] == "steering_not_supported"
        server.engine.go.set()
        assert (await other.until("response.completed"))[-1]["response"]["status"] == "completed"
        # Another connection does not answer it.
        await talk.steer(response_id, STEER)
        assert (await talk.next())["error"]["code"] == "response_not_found"


async def _conversation(server: Running) -> str:
    async with client(server) as api:
        return (await api.conversation()).rpartition("/")[2]


# Whatever comes when


async def test_who_leaves_leaves_nothing(server: Running, family: Family) -> None:
    """Input that was accepted, that waits for outputs, and lanes that are answered."""
    engine: Halting = server.engine
    written = family.written("call")
    async with talking(server) as talk:
        first, pending = await steered_after(server, talk, len(written) - 5, written, "Oui.", tools=[OWN])
        assert (first["status"], pending["type"]) == ("completed", "response.steer.pending")
        engine.says(written, after=len(written) - 5)
        await talk.create("Hi", store=False, request_id="left", tools=[OWN], stream_id="a")
        await engine.reached()
        await talk.steer("resp_left", STEER)
        await talk.until("response.steer.accepted")
        assert server.app.socket_bytes.total() > 0
    async with asyncio.timeout(10):
        while server.app.socket_bytes:
            await asyncio.sleep(0.01)
    assert not engine.working


async def test_more_responses_that_wait_than_a_connection_keeps(family: Family) -> None:
    written = family.written("call")
    async with running(Halting(), limit=Limits(socket_turns=1)) as server, talking(server) as talk:
        for chunks in (len(written) - 5, len(written) - 4):
            await steered_after(server, talk, chunks, written, "Oui.", given=f"{chunks}", tools=[OWN])
        failed = await talk.next()
        ResponseSteerFailedEvent.model_validate(failed)
        assert (failed["error"]["code"], failed["steer"]["input"]) == (
            "response_not_active",
            f"{len(written) - 5}",
        )


ACTIONS = st.lists(st.tuples(st.sampled_from(["create", "steer", "read"]), st.integers(0, 2)), max_size=14)


@settings(max_examples=examples(25))
@given(actions=ACTIONS)
async def test_no_input_is_lost(actions: list[tuple[str, int]]) -> None:
    """Whatever is sent when: what was accepted is read by a response that follows, all else is returned."""
    lines = [{"output": "one two three four five six", "delay_ms": 1}]
    limits = Limits(socket_lanes=2, socket_messages=100, pending_steers=2)
    async with running(lines, limit=limits) as server, talking(server) as talk:
        told: list[Event] = []
        asked = sent = 0
        for action, number in actions:
            created = [each["response"]["id"] for each in told if each["type"] == "response.created"]
            if action == "create":
                asked += 1
                await talk.create(f"question {asked}", stream_id=f"lane{number}")
            elif action == "steer" and created:
                sent += 1
                await talk.steer(created[-1 - number % len(created)], f"input {sent}.")
            elif not _settled(told, asked, sent):
                told.append(await talk.next())
        while not _settled(told, asked, sent):
            told.append(await talk.next())

        returned = {each["steer"]["input"] for each in told if each["type"] == "response.steer.failed"}
        prompts = [generation.prompt.text for generation in server.engine.seen]
        for number in range(1, sent + 1):
            given_text = f"input {number}."
            assert (given_text in returned) != any(given_text in prompt for prompt in prompts)


def _settled(told: list[Event], asked: int, sent: int) -> bool:
    """Whether nothing more is to come: every request and every input has its answer."""
    of_type = {type_: [each for each in told if each["type"] == type_] for type_ in {e["type"] for e in told}}
    created = [each["response"] for each in of_type.get("response.created", [])]
    ended = [each["response"]["id"] for each in told if each["type"] in TERMINAL.values()]
    accepted = {each["steer"]["previous_response_id"] for each in of_type.get("response.steer.accepted", [])}
    refused = of_type.get("response.steer.failed", [])
    answered = len(of_type.get("response.steer.accepted", [])) + len(refused)
    first = [each for each in created if each["previous_response_id"] is None]
    return (
        len(first) + len(of_type.get("error", [])) == asked
        and len(ended) == len(created)
        and answered == sent
        and accepted <= {each["previous_response_id"] for each in created}
    )


async def test_the_sdk_of_openai_steers(server: Running) -> None:
    server.engine.says("Hello there", "Oui.", after=3)
    async with (
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as sdk,
        sdk.responses.connect() as connection,
    ):
        await connection.response.create(model="scripted", input="Hi", stream_id="a")
        told: list[Any] = [await connection.recv()]
        response_id = told[0].response.id
        await connection.response.steer(input=STEER, previous_response_id=response_id)
        async with asyncio.timeout(10):
            while told[-1].type != "response.completed":
                told.append(await connection.recv())
    types = [event.type for event in told]
    assert types.index("response.steer.accepted") < types.index("response.incomplete")
    [ended] = [event for event in told if event.type == "response.incomplete"]
    assert ended.response.incomplete_details.reason == "steered"
    assert told[-1].response.previous_response_id == response_id
    assert told[-1].response.output_text == "Oui."
