"""Conversations that are made short: before an answer, in the place of one, and by a call."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from antiphon.apis.summaries import SUMMARY_INTRODUCTION
from antiphon.engines.scripted import ScriptedEngine
from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, text_of, user
from tests.server import Running, running

END = "<|im_end|>\n<|im_start|>assistant\n"
ASKED = "Our conversation is getting long"
SUMMARY = "<think>\nWhat matters?\n</think>\n\nThe user counts sheep."
TALK = "a very long answer indeed"
SCRIPT: list[Mapping[str, Any]] = [
    {"when": f"breaks it<|im_end|>\n<|im_start|>user\n{ASKED}", "output": "x", "fail_after": 0},
    {"when": ASKED, "output": SUMMARY},
    {"when": f"callit{END}", "output": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'},
    {"when": f"talk{END}", "output": f"{TALK} " * 40},
    {"output": "Hello there!"},
]
TOOLS = [{"type": "function", "name": "f"}]
TRIGGER = {"type": "compaction_trigger"}


def from_(threshold: int) -> dict[str, Any]:
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


def check_short(prompt: str, last: str) -> None:
    """The prompt has the summary in the place of the answer, and ends with what is still to be answered."""
    assert prompt == (
        "<|im_start|>user\ntalk<|im_end|>\n"
        f"<|im_start|>user\n{SUMMARY_INTRODUCTION}The user counts sheep.<|im_end|>\n"
        f"<|im_start|>user\n{last}{END}"
    )


# Before an answer


async def test_a_conversation_that_is_short_stays_as_it_is(api: Api, server: Running) -> None:
    body = await api.create("Hi", **from_(1000))
    assert items_of(body, "compaction") == []
    assert len(server.engine.seen) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_long_conversation_is_summed_up_before_the_answer(
    api: Api, server: Running, streamed: bool
) -> None:
    first = await api.create("talk")
    answered = api.streamed if streamed else api.create

    body = await answered("more", previous_response_id=first["id"], **from_(50))

    assert [item["type"] for item in body["output"]] == ["compaction", "message"]
    assert text_of(body) == "Hello there!"
    assert "sheep" not in json.dumps(body)
    check_short(prompt_of(server), "more")
    summary, answer = list(server.engine.seen)[-2:]
    assert TALK in summary.prompt.text
    assert body["usage"]["input_tokens"] == len(summary.prompt.ids) + len(answer.prompt.ids)
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert await api.get(f"/responses/{body['id']}") == body

    third = await api.create("and more", previous_response_id=body["id"], **from_(50))
    assert items_of(third, "compaction") == []  # it has become short enough
    prompt = prompt_of(server)
    assert prompt.startswith(answer.prompt.text)  # what was shown once is shown the same again
    assert prompt.endswith(f"Hello there!<|im_end|>\n<|im_start|>user\nand more{END}")


async def test_a_stream_tells_of_the_compaction_first(api: Api) -> None:
    first = await api.create("talk")
    payloads = await api.stream("more", previous_response_id=first["id"], **from_(50))
    check_stream(payloads)
    events = [json.loads(payload) for payload in payloads]
    assert [event["type"].removeprefix("response.") for event in events[:5]] == [
        *("created", "in_progress", "output_item.added", "output_item.done", "output_item.added")
    ]
    assert [event["output_index"] for event in events[2:5]] == [0, 0, 1]
    assert events[2]["item"]["type"] == "compaction"


async def test_a_client_that_keeps_the_items_itself(api: Api, server: Running) -> None:
    first = await api.create("talk", store=False)
    given = [user("talk"), *first["output"], user("more")]
    second = await api.create(given, store=False, **from_(50))
    check_short(prompt_of(server), "more")

    await api.create([*given, *second["output"], user("and more")], store=False)
    assert TALK not in prompt_of(server)
    assert "The user counts sheep." in prompt_of(server)
    # The client may leave out items before a compaction.
    [compaction, message] = second["output"]
    await api.create([compaction, message, user("and more")], store=False)
    assert prompt_of(server).startswith(f"<|im_start|>user\n{SUMMARY_INTRODUCTION}The user")


async def test_a_conversation_gets_the_compaction(api: Api, server: Running) -> None:
    conversation = (await api.post("/conversations", {}))["id"]
    await api.create("talk", conversation=conversation)
    await api.create("more", conversation=conversation, **from_(50))
    check_short(prompt_of(server), "more")
    items = (await api.get(f"/conversations/{conversation}/items", order="asc"))["data"]
    assert [item["type"] for item in items] == ["message", "message", "message", "compaction", "message"]
    await api.create("and more", conversation=conversation)
    assert TALK not in prompt_of(server)


async def test_it_is_summed_up_in_the_background_too(api: Api, server: Running) -> None:
    first = await api.create("talk")
    queued = await api.create("more", previous_response_id=first["id"], background=True, **from_(50))
    body = await api.finished(queued["id"])
    assert [item["type"] for item in body["output"]] == ["compaction", "message"]
    check_short(prompt_of(server), "more")
    assert check_stream(await api.events(body["id"])) == body


async def test_a_summary_is_summed_up_with_the_rest(api: Api, server: Running) -> None:
    first = await api.create("talk")
    second = await api.create("talk", previous_response_id=first["id"], **from_(50))
    assert [item["type"] for item in second["output"]] == ["compaction", "message"]
    await api.create("more", previous_response_id=second["id"], **from_(50))
    assert prompt_of(server).count("The user counts sheep.") == 1
    asked = server.engine.seen[-2].prompt.text
    assert "The user counts sheep." in asked
    assert TALK in asked


async def test_what_binds_the_answer_does_not_bind_the_summary(api: Api, server: Running) -> None:
    first = await api.create("talk")
    fields = {"tools": TOOLS, "max_output_tokens": 2, "stop": "The", "instructions": "Be kind."}
    body = await api.create("more", previous_response_id=first["id"], **fields, **from_(50))
    assert (body["status"], text_of(body)) == ("incomplete", "Hello there")
    summary, answer = list(server.engine.seen)[-2:]
    assert summary.max_tokens > 1000
    assert "<tools>" not in summary.prompt.text
    assert "<tools>" in answer.prompt.text
    assert "Be kind." in answer.prompt.text


async def test_a_summary_that_fails_fails_the_answer(api: Api) -> None:
    error = await api.refused("breaks it", 500, **from_(1))
    assert error["type"] == "server_error"
    queued = await api.create("breaks it", background=True, **from_(1))
    body = await api.finished(queued["id"])
    assert (body["status"], body["output"]) == ("failed", [])
    assert check_stream(await api.events(body["id"])) == body


async def test_a_result_of_a_tool_is_summed_up_with_its_call(api: Api, server: Running) -> None:
    first = await api.create("callit", tools=TOOLS)
    [call] = items_of(first, "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "word " * 100}
    body = await api.create([result], previous_response_id=first["id"], tools=TOOLS, **from_(100))
    assert text_of(body) == "Hello there!"
    assert "word word" not in prompt_of(server)
    assert prompt_of(server).endswith(f"The user counts sheep.{END}")


@pytest.mark.parametrize(
    ("management", "param"),
    [
        ([{"type": "truncation"}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
        ([{}], "context_management[0].type"),
        ({"type": "compaction"}, "context_management"),
    ],
)
async def test_what_cannot_be_managed(api: Api, management: Any, param: str) -> None:
    assert (await api.refused("Hi", context_management=management))["param"] == param


async def test_compaction_without_a_threshold_does_nothing(api: Api) -> None:
    body = await api.create("Hi", context_management=[{"type": "compaction"}])
    assert items_of(body, "compaction") == []


# In the place of an answer


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_compaction_is_asked_for_in_the_place_of_an_answer(
    api: Api, server: Running, streamed: bool
) -> None:
    first = await api.create("talk")
    answered = api.streamed if streamed else api.create

    body = await answered([TRIGGER], previous_response_id=first["id"])

    assert body["status"] == "completed"
    assert [item["type"] for item in body["output"]] == ["compaction"]
    assert body["usage"]["output_tokens"] > 0
    assert len(server.engine.seen) == 2
    assert (await api.get(f"/responses/{body['id']}/input_items"))["data"] == []
    await api.create("more", previous_response_id=body["id"])
    check_short(prompt_of(server), "more")


async def test_a_compaction_is_asked_for_with_the_items(api: Api) -> None:
    body = await api.create([user("talk"), {"role": "assistant", "content": TALK}, TRIGGER], store=False)
    assert [item["type"] for item in body["output"]] == ["compaction"]


async def test_no_compaction_is_asked_for_in_the_background(api: Api) -> None:
    assert (await api.refused([user("Hi"), TRIGGER], background=True))["param"] == "background"


# By a call


async def test_a_chain_is_made_short(api: Api, server: Running) -> None:
    first = await api.create("talk")
    body = {"model": "scripted", "previous_response_id": first["id"], "instructions": "Be kind."}
    short = await api.post("/responses/compact", body)
    assert [item["type"] for item in short["output"]] == ["message", "compaction"]
    assert prompt_of(server).startswith("<|im_start|>system\nBe kind.")
    assert short["usage"]["input_tokens"] == len(server.engine.seen[-1].prompt.ids)
    await api.create([*short["output"], user("more")])
    check_short(prompt_of(server), "more")
    conversation = await api.post("/conversations", {"items": short["output"]})
    await api.create("more", conversation=conversation["id"])
    check_short(prompt_of(server), "more")


async def test_what_was_made_short_can_be_made_shorter(api: Api, server: Running) -> None:
    short = await api.post("/responses/compact", ask([user("talk"), {"role": "assistant", "content": TALK}]))
    again = await api.post("/responses/compact", ask([*short["output"], user("more")]))
    assert [item["type"] for item in again["output"]] == ["message", "message", "compaction"]
    assert again["output"][0] == short["output"][0]
    assert again["output"][-1]["id"] != short["output"][-1]["id"]


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({"input": "Hi", "model": 3}, "model", 400),
        ({"model": "scripted"}, "input", 400),
        ({"model": "scripted", "input": []}, "input", 400),
        ({"model": "nobody", "input": "Hi"}, "model", 404),
        ({"model": "scripted", "previous_response_id": "resp_nothing"}, "previous_response_id", 404),
        ({"model": "scripted", "input": [{"type": "compaction"}]}, "input[0].encrypted_content", 400),
    ],
)
@pytest.mark.parametrize("path", ["compact", "input_tokens"])
async def test_what_cannot_be_made_short_or_measured(
    body: dict[str, Any], param: str, status: int, path: str
) -> None:
    async with running(ScriptedEngine(SCRIPT, context=200)) as server, client(server) as api:
        assert (await api.post(f"/responses/{path}", body, status))["error"]["param"] == param


async def test_what_is_too_long_can_be_measured_and_not_made_short() -> None:
    body = {"model": "scripted", "input": "word " * 400}
    async with running(ScriptedEngine(SCRIPT, context=200)) as server, client(server) as api:
        assert (await api.post("/responses/input_tokens", body))["input_tokens"] > 200
        assert (await api.post("/responses/compact", body, 400))["error"]["param"] == "input"
