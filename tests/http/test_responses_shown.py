"""What of an answer is shown: thoughts, sealed or not, log probabilities, and how they are streamed."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, text_of, user
from tests.openai_schema import OPEN_RESPONSES, validate_event
from tests.response_invariants import check, read_sse
from tests.server import Running, running

END = "<|im_end|>\n<|im_start|>assistant\n"
SCRIPT: list[Mapping[str, Any]] = [
    {"when": f"odd{END}", "output": 'Grüße 👋🏽, "x"\\n', "split": "chars"},
    {"when": "wants it sealed", "output": "<think>\nA secret plan.\n</think>\n\nDone."},
    {"when": f"only thinks{END}", "output": "<think>\nHm."},
    {"output": "<think>\nHm.\n</think>\n\nHello there, friend!"},
]
SEALED = {"include": ["reasoning.encrypted_content"]}
SCORED = {"include": ["message.output_text.logprobs"]}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


# Thoughts


async def both(api: Api, given: Any, **fields: Any) -> list[Any]:
    """The response, whole and as a stream ends with it."""
    return [await api.create(given, **fields), await api.streamed(given, **fields)]


async def test_thoughts_are_shown_as_they_are(api: Api) -> None:
    for body in await both(api, "Hi"):
        [thought] = items_of(body, "reasoning")
        assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert thought["summary"] == []
        assert "encrypted_content" not in thought


@pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
async def test_thoughts_are_shown_as_the_summary(api: Api, summary: str) -> None:
    for body in await both(api, "Hi", reasoning={"summary": summary}):
        [thought] = items_of(body, "reasoning")
        assert thought["summary"] == [{"type": "summary_text", "text": "Hm."}]
        assert "content" not in thought
        assert body["reasoning"]["summary"] == summary


async def test_what_the_model_read_and_wrote_is_shown_as_it_was(api: Api, server: Running) -> None:
    for body in await both(api, "Hi", enable_response_messages=True):
        [read], [wrote] = body["input_messages"], body["output_messages"]
        assert read["message"] == prompt_of(server)
        assert read["tokens"] == list(server.engine.seen[-1].prompt.ids)
        assert wrote["message"] == "<think>\nHm.\n</think>\n\nHello there, friend!"
        assert len(wrote["tokens"]) == body["usage"]["output_tokens"]
        assert read["type"] == wrote["type"] == "raw_message_tokens"
    created = await api.create("Hi", enable_response_messages=True, background=True)
    assert (await api.finished(created["id"]))["output_messages"] == [wrote]
    assert "input_messages" not in await api.create("Hi")
    error = await api.refused("Hi", enable_response_messages=True, include_reasoning=False)
    assert error["param"] == "enable_response_messages"


async def test_thoughts_are_hidden(api: Api) -> None:
    for body in await both(api, "Hi", include_reasoning=False):
        assert [item["type"] for item in body["output"]] == ["message"]
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_events_of_thoughts_have_the_names_that_the_server_chose() -> None:
    async with running(SCRIPT, reasoning_events="open-responses") as server, client(server) as api:
        payloads = await api.stream("Hi")
        types = [validate_event(payload, OPEN_RESPONSES) for payload in payloads]
        told = {type_ for type_ in types if "reasoning" in type_}
        assert told == {"response.reasoning.delta", "response.reasoning.done"}
        assert items_of(check(payloads), "reasoning")[0]["content"][0]["text"] == "Hm."
        summed_up = await api.stream("Hi", reasoning={"summary": "auto"})
        assert b"response.reasoning_summary_text.delta" in b"".join(summed_up)


async def test_an_answer_that_only_thinks(api: Api) -> None:
    for body in await both(api, "only thinks"):
        assert body["status"] == "completed"
        assert [item["type"] for item in body["output"]] == ["reasoning"]


async def test_thoughts_go_with_the_chain(api: Api) -> None:
    first = await api.create("Hi", reasoning={"summary": "auto"}, **SEALED)
    counted = await api.post("/responses/input_tokens", ask("more", previous_response_id=first["id"]))
    without = [item for item in first["output"] if item["type"] != "reasoning"]
    fewer = await api.post("/responses/input_tokens", ask([user("Hi"), *without, user("more")]))
    assert counted["input_tokens"] >= fewer["input_tokens"]


# Sealed thoughts


async def sealed(api: Api) -> Any:
    """A thought that only its server can read."""
    body = await api.create("wants it sealed", store=False, reasoning={"summary": "auto"}, **SEALED)
    [thought] = items_of(body, "reasoning")
    assert "secret plan" not in thought["encrypted_content"]
    return {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}


async def test_sealed_thoughts_are_the_same_streamed(api: Api) -> None:
    whole, streamed = await both(api, "wants it sealed", store=False, **SEALED)
    [one], [other] = items_of(whole, "reasoning"), items_of(streamed, "reasoning")
    assert one["encrypted_content"] == other["encrypted_content"]


async def test_secrets_can_be_changed() -> None:
    async with running(SCRIPT, secret=("old",)) as server, client(server) as api:
        by_old = await sealed(api)
    async with running(SCRIPT, secret=("new", "old")) as server, client(server) as api:
        by_new = await sealed(api)
        for thought in (by_old, by_new):
            assert (await api.create([user("Hi"), thought, user("more")]))["status"] == "completed"
        assert by_new != by_old
    async with running(SCRIPT, secret=("new",)) as server, client(server) as api:
        assert (await api.create([user("Hi"), by_new, user("more")]))["status"] == "completed"
        error = await api.refused([user("Hi"), by_old, user("more")])
        assert error["param"] == "input[1].encrypted_content"


async def test_what_was_sealed_for_another_key_is_refused() -> None:
    async with running(SCRIPT, api_key=("one", "two")) as server:
        async with client(server, "one") as api:
            thought = await sealed(api)
            short = await api.post("/responses/compact", ask("Hi"))
            await api.create([user("Hi"), thought, *short["output"]])
        async with client(server, "two") as api:
            for stolen in (thought, short["output"][-1]):
                error = await api.refused([user("Hi"), stolen])
                assert error["param"] == "input[1].encrypted_content"
                body = {"items": [user("Hi"), stolen]}
                error = (await api.post("/conversations", body, 400))["error"]
                assert error["param"] == "items[1].encrypted_content"


async def test_what_was_changed_on_the_way_is_refused(api: Api) -> None:
    thought = await sealed(api)
    text = thought["encrypted_content"]
    for broken in (text[:-4] + "AAAA", text[:20], text + "AAAA", "a1."):
        given = [user("Hi"), {**thought, "encrypted_content": broken}]
        error = await api.refused(given)
        assert (error["param"], error["code"]) == ("input[1].encrypted_content", "invalid_encrypted_content")
    for foreign in (text[3:], "é"):
        response = await api.create([user("Hi"), {**thought, "encrypted_content": foreign}])
        assert [note["param"] for note in response["notes"]] == ["input[1].encrypted_content"]


# Log probabilities


async def test_log_probabilities(api: Api) -> None:
    for body in await both(api, "odd", top_logprobs=2, **SCORED):
        [message] = items_of(body, "message")
        [part] = message["content"]
        tokens = part["logprobs"]
        assert "".join(token["token"] for token in tokens) == part["text"]
        assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == part["text"]
        assert all(len(token["top_logprobs"]) == 2 for token in tokens)
        assert all(token["logprob"] <= 0 for token in tokens)
        assert body["top_logprobs"] == 2


async def test_log_probabilities_of_a_stream(api: Api) -> None:
    payloads = await api.stream("Hi", top_logprobs=1, **SCORED)
    response = check_stream(payloads)
    events = [json.loads(payload) for payload in payloads]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    told = [token for event in deltas for token in event["logprobs"]]
    assert told
    assert told == done["logprobs"] == items_of(response, "message")[0]["content"][0]["logprobs"]
    # Those of thoughts and of markup are not among them.
    assert "".join(token["token"] for token in told) == text_of(response)
    assert await api.get(f"/responses/{response['id']}") == response


async def test_log_probabilities_are_only_told_if_they_are_wanted(api: Api) -> None:
    for fields in ({}, {"top_logprobs": 5}, {"include": []}, {"include": None}):
        for body in await both(api, "Hi", **fields):
            assert items_of(body, "message")[0]["content"][0]["logprobs"] == []
    body = await api.create("Hi", **SCORED)
    tokens = items_of(body, "message")[0]["content"][0]["logprobs"]
    assert tokens
    assert all(token["top_logprobs"] == [] for token in tokens)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"include": ["nothing"]}, "include[0]"),
        ({"include": [SEALED["include"][0], "message.logprobs"]}, "include[1]"),
        ({"include": "all"}, "include"),
        ({"include": [5]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
    ],
)
async def test_what_cannot_be_shown(api: Api, fields: Any, param: str) -> None:
    assert (await api.refused("Hi", **fields))["param"] == param


@pytest.mark.parametrize(
    "wanted",
    [
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    ],
)
async def test_everything_that_the_specifications_include_may_be_asked_for(api: Api, wanted: str) -> None:
    assert (await api.create("Hi", include=[wanted, wanted]))["status"] == "completed"


# Limits and counts


@pytest.mark.parametrize("limit", range(1, 12))
async def test_an_answer_may_be_cut_anywhere(api: Api, limit: int) -> None:
    whole = await api.create("Hi")
    for body in await both(api, "Hi", max_output_tokens=limit):
        assert body["max_output_tokens"] == limit
        assert body["usage"]["output_tokens"] <= limit
        if body["usage"]["output_tokens"] == whole["usage"]["output_tokens"]:
            assert body["status"] == "completed"
        else:
            assert body["status"] == "incomplete"
            assert body["incomplete_details"] == {"reason": "max_output_tokens"}
            assert "incomplete" not in [item["status"] for item in body["output"][:-1]]
        assert text_of(whole).startswith(text_of(body))


async def test_usage_is_counted(api: Api, server: Running) -> None:
    for body in await both(api, "Hi", instructions="Be kind."):
        usage = body["usage"]
        assert usage["input_tokens"] == len(server.engine.seen[-1].prompt.ids)
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] >= 0
        assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


async def test_effort_and_verbosity_reach_the_template(api: Api, server: Running) -> None:
    await api.create("Hi", reasoning={"effort": "high"})
    assert prompt_of(server).endswith("<think>\n")
    await api.create("Hi", reasoning={"effort": "none"})
    assert prompt_of(server).endswith(END)


async def test_a_stream_can_be_padded(api: Api) -> None:
    body = ask("Hi", stream=True, stream_options={"include_obfuscation": True})
    response = await api.http.post("/responses", json=body)
    payloads = read_sse(response.content)
    check_stream(payloads)
    deltas = [payload for payload in payloads if b".delta" in payload]
    assert deltas
    assert all(b'"obfuscation":"' in payload for payload in deltas)
    assert len({len(payload) % 64 for payload in deltas}) == 1
    assert not any(b"obfuscation" in payload for payload in payloads if payload not in deltas)
