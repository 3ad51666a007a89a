"""Moderation by a guard model, over HTTP: each format of guards, in each API, streamed or not, in each mode."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.decision import Decision, Verdict, Verdicts
from antiphon.core.items import Role, text_in
from antiphon.core.limits import Limits
from antiphon.core.moderation import CATEGORIES
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.guard.formats import DECISIONS, DEFINITIONS, FORMATS
from antiphon.run.guarding import AT_ONCE
from antiphon.run.models import Models
from tests.deciding import deciding
from tests.http.chat_api import events
from tests.http.test_socket import connected, turn
from tests.media import data_url, png
from tests.openai_schema import OPENAI_MODERATION, validate
from tests.run.support import until
from tests.server import NO_TLS, Running, running, served_model
from tests.steering import Halting, talking

pytestmark = pytest.mark.asyncio(loop_scope="module")

BAD = "bad thing"
"""What guards flag, at the end of a text."""
MODERATIONS, CHAT, RESPONSES = "/v1/moderations", "/v1/chat/completions", "/v1/responses"


def shares(**told: float) -> dict[str, float]:
    """The log probabilities of tokens."""
    return {text: math.log(share) for text, share in told.items()}


def is_bad(policy: str) -> str:
    return f'{BAD} | "{policy}'


SHIELD_TEMPLATE = """\
{%- for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}
{{- ' | ' + (guideline or '') + '\\n' }}"""
"""One that shows the policy, as ShieldGemma's does."""

GUARDS: Mapping[str, list[dict[str, Any]]] = {
    "llama-guard": [
        {"when": "unsafe\nS", "last": 8, "output": "1", "next": {"1": math.log(0.75), "10": math.log(0.2)}},
        {"when": BAD, "output": "unsafe\nS1", "next": shares(unsafe=0.9, safe=0.05)},
        {"output": "safe", "next": shares(safe=0.95, unsafe=0.01)},
    ],
    "qwen3guard": [
        {
            "when": "\nCategories:",
            "last": 12,
            "output": " Violent",
            "next": {" Viol": math.log(0.8), " PII": -3},
        },
        {
            "when": BAD,
            "output": "Safety: Unsafe\nCategories: Violent",
            "next": {" Unsafe": math.log(0.9), " Safe": -4},
        },
        {"output": "Safety: Safe\nCategories: None", "next": {" Safe": math.log(0.9), " Contro": -4}},
    ],
    "shieldgemma": [
        {"when": is_bad("No Harassment"), "output": "Yes", "next": shares(Yes=0.9, No=0.05)},
        {"output": "No", "next": shares(No=0.9, Yes=0.05)},
    ],
    DECISIONS: [{"output": "A"}],
}
"""A model of each format: what it says of a text with `BAD`, and of others."""
FLAGGED = {
    "llama-guard": "violence",
    "qwen3guard": "violence",
    "shieldgemma": "harassment",
    DECISIONS: "sexual",
}
NAMES = {
    "llama-guard": "Llama-Guard-3-8B",
    "qwen3guard": "Qwen3Guard-Gen-4B",
    "shieldgemma": "shieldgemma-2b",
    DECISIONS: "any-model",
}
SCRIPT: list[dict[str, Any]] = [
    {"when": "Say it", "output": f"Well, {BAD}"},
    {"when": "Say late", "output": "All is well here. " * 4 + BAD + " and more" * 20, "split": 6},
    {"when": "Say apart", "output": "All is well, a bad thing is here.", "split": 6},
    {"when": "Say on", "output": f"{BAD}, and more ", "tokens": 10**6, "delay_ms": 1},
    {"when": "Say much", "output": "All is well here. " * 40, "split": 6},
    {"when": "Call", "output": f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{BAD}"}}}}\n</tool_call>'},
    {"when": "Think", "output": f"<think>{BAD}</think>Nothing."},
    {"output": "All is well."},
]


def decided(decision: Decision) -> Verdicts:
    """What a model without a format thinks of a text."""
    said = "".join(text_in(item.parts) for item in decision.items)  # type: ignore[union-attr]
    yes = 0.9 if BAD in said else 0.1
    verdicts = [
        Verdict((yes, 1 - yes) if name == FLAGGED[DECISIONS] else (0.05, 0.95), 0.9, label_is_likeliest=True)
        for name in DEFINITIONS
    ]
    return Verdicts((*verdicts,), 50)


def guard_engine(form: str, *, told: bool = True, script: Any = None) -> ScriptedEngine:
    able = CAPABILITIES.sampling if told else CAPABILITIES.sampling - {"logprobs"}
    engine = ScriptedEngine(
        script or GUARDS[form], name=NAMES[form], capabilities=replace(CAPABILITIES, sampling=able)
    )
    if form == "shieldgemma":
        engine.card = replace(engine.card, chat_template=SHIELD_TEMPLATE)
    return engine


class Guarded(Struct):
    """A server with a guard, and a client of it."""

    http: httpx.AsyncClient
    server: Running
    chat: ScriptedEngine
    guard: ScriptedEngine

    async def ask(self, api: str, said: str, *, stream: bool = False, **fields: Any) -> "Answer":
        """The answer to a request."""
        given = {CHAT: {"messages": [{"role": "user", "content": said}]}, RESPONSES: {"input": said}}[api]
        body = {"model": "chat", "stream": stream, **given, **fields}
        response = await self.http.post(api, json=body)
        return answer_of(api, response, stream=stream)


class Answer(Struct):
    """What a client gets."""

    status: int
    text: str = ""
    ended: str | None = None
    moderation: Any = None
    error: Any = None


def answer_of(api: str, response: httpx.Response, *, stream: bool) -> Answer:
    if response.status_code != 200:
        return Answer(response.status_code, error=response.json()["error"])
    if api == CHAT:
        return _streamed_chat(response) if stream else _chat(response.json())
    return _streamed_response(response) if stream else _response(response.json())


def _chat(body: Any) -> Answer:
    validate("CreateChatCompletionResponse", body)
    [choice] = body["choices"]
    return Answer(200, choice["message"]["content"] or "", choice["finish_reason"], body.get("moderation"))


def _streamed_chat(response: httpx.Response) -> Answer:
    answer = Answer(200)
    *chunks, end = events(response.text)
    assert end == "[DONE]"
    for chunk in chunks:
        if "error" in chunk:
            answer.error = chunk["error"]
            continue
        validate("CreateChatCompletionStreamResponse", chunk)
        answer.moderation = chunk.get("moderation", answer.moderation)
        for choice in chunk["choices"]:
            answer.text += choice["delta"].get("content") or ""
            answer.ended = choice["finish_reason"] or answer.ended
    return answer


def _response(body: Any) -> Answer:
    texts = [part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]]
    ended = (body["incomplete_details"] or {}).get("reason", "stop")
    return Answer(200, "".join(texts), ended, body.get("moderation"), body["error"])


def _streamed_response(response: httpx.Response) -> Answer:
    payloads = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    told = [json.loads(payload) for payload in payloads]
    answer = _response(told[-1]["response"])
    shown = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert answer.text == shown
    return answer


@asynccontextmanager
async def guarded(
    form: str = "llama-guard",
    *,
    told: bool = True,
    script: Any = None,
    chat: ScriptedEngine | None = None,
    **options: Any,
) -> Any:
    chat, guard = chat or ScriptedEngine(SCRIPT), guard_engine(form, told=told, script=script)
    models = Models(
        [
            served_model(chat, model_name=("chat",), dialect="hermes"),
            served_model(guard, model_name=("guard",), dialect="plain"),
        ],
        limits=options.get("limit", Limits()),
    )
    async with (
        running(chat, models=models, **{"moderation": "guard", **options}) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=20) as http,
    ):
        yield Guarded(http, server, chat, guard)


KINDS = [(form, told) for form, told in product(GUARDS, (True, False)) if told or form != DECISIONS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Mapping[tuple[str, bool], Guarded]]:
    async with AsyncExitStack() as stack:
        yield {
            (form, told): await stack.enter_async_context(guarded(form, told=told, moderation_window=16))
            for form, told in KINDS
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llama(servers: Mapping[tuple[str, bool], Guarded]) -> Guarded:
    return servers["llama-guard", True]


def policy(input_: str = "score", output: str = "score") -> dict[str, Any]:
    modes = {"input": {"mode": input_}, "output": {"mode": output}}
    return {"moderation": {"model": "omni-moderation-latest", "policy": modes}}


def result_in(api: str, told: Any) -> Any:
    """The only result of one side of a moderation, which is what OpenAI says it is."""
    if api == RESPONSES:
        validate("ModerationResultBody", told, OPENAI_MODERATION)
        return told
    validate("ChatCompletionModerationResults", told, OPENAI_MODERATION)
    [result] = told["results"]
    return result


def check_result(result: Any, form: str, *, told: bool, flagged: bool) -> None:
    """A result says what the guard does."""
    assert result["flagged"] is flagged
    assert set(CATEGORIES) <= result["categories"].keys() == result["category_scores"].keys()
    category = FLAGGED[form]
    assert result["categories"][category] is flagged
    assert result["category_applied_input_types"][category] == ["text"]
    score = result["category_scores"][category]
    assert result["x_scores"] == ("probability" if told else "verdict")
    if told:
        assert (0.5 < score < 1) if flagged else (0 < score < 0.5)
    else:
        assert score == int(flagged)


# Answers


@pytest.mark.parametrize(("form", "told"), KINDS)
@pytest.mark.parametrize("case", [*product((CHAT, RESPONSES), (False, True), ("score", "block"))], ids=str)
async def test_requests_and_answers_are_checked(
    servers: Any, form: str, told: bool, case: tuple[str, bool, str]
) -> None:
    (api, stream, mode), server = case, servers[form, told]
    with deciding(decided):
        good = await server.ask(api, "Hello.", stream=stream, **policy(mode, mode))
        harmful = await server.ask(api, "Say it", stream=stream, **policy(mode, mode))
        asked = await server.ask(api, f"Do this {BAD}", stream=stream, **policy(mode))

    assert (good.status, good.text, good.ended) == (200, "All is well.", "stop")
    for side in ("input", "output"):
        check_result(result_in(api, good.moderation[side]), form, told=told, flagged=False)
    assert (harmful.status, harmful.ended) == (200, "stop" if mode == "score" else "content_filter")
    assert (BAD in harmful.text) is (mode == "score")
    check_result(result_in(api, harmful.moderation["input"]), form, told=told, flagged=False)
    check_result(result_in(api, harmful.moderation["output"]), form, told=told, flagged=True)
    if mode == "score":
        assert (asked.status, asked.text) == (200, "All is well.")
        check_result(result_in(api, asked.moderation["input"]), form, told=told, flagged=True)
    else:
        param = "messages" if api == CHAT else "input"
        error = asked.error
        assert (asked.status, error["code"], error["param"]) == (400, "moderation_blocked", param)
        assert FLAGGED[form] in error["message"]


@pytest.mark.parametrize(("form", "told"), KINDS)
async def test_texts_are_judged_one_by_one(servers: Any, form: str, told: bool) -> None:
    server: Guarded = servers[form, told]
    with deciding(decided):
        response = await server.http.post(MODERATIONS, json={"input": ["Hello.", f"A {BAD}"]})
    body = response.json()
    validate("CreateModerationResponse", body, OPENAI_MODERATION)
    assert (body["model"], body["id"][:5]) == ("guard", "modr-")
    for result, flagged in zip(body["results"], (False, True), strict=True):
        check_result(result, form, told=told, flagged=flagged)


@pytest.mark.parametrize("form", FORMATS)
async def test_a_safe_text_costs_no_answer_where_probabilities_are_told(form: str) -> None:
    async with guarded(form) as server:
        await server.http.post(MODERATIONS, json={"input": "Hello."})
        assert {request.max_tokens for request in server.guard.seen} == {1}
        await server.http.post(MODERATIONS, json={"input": "Hello."})  # which is known already
        seen = len(server.guard.seen)
        assert seen == {"llama-guard": 3, "qwen3guard": 2, "shieldgemma": 4}[form]


@pytest.mark.parametrize(("api", "stream"), [*product((CHAT, RESPONSES), (False, True))])
async def test_nothing_unchecked_is_shown_and_the_model_stops(llama: Guarded, api: str, stream: bool) -> None:
    llama.chat.seen.clear()
    answer = await llama.ask(api, "Say late", stream=stream, **policy(output="block"))
    assert answer.ended == "content_filter"
    assert answer.text
    assert BAD not in answer.text
    assert SCRIPT[1]["output"].startswith(answer.text)
    assert llama.server.models.loads["chat"].running == 0


@pytest.mark.parametrize(("api", "stream"), [*product((CHAT, RESPONSES), (False, True))])
async def test_a_model_that_is_blocked_stops_at_once(llama: Guarded, api: str, stream: bool) -> None:
    answer = await llama.ask(api, "Say on", stream=stream, **policy(output="block"))
    assert (answer.text, answer.ended) == ("", "content_filter")
    assert llama.server.models.loads["chat"].running == 0


async def test_a_verdict_is_not_taken_for_that_of_another_text() -> None:
    """Whatever characters it has, and the message before it."""
    async with guarded(told=False) as server:
        assert server.server.app.moderator is not None
        for count, (before, text) in enumerate([("a\0b", "c"), ("a", "b\0c"), ("a", "🙂"), ("a", "?")], 1):
            await server.server.app.moderator.guard.judge([text], Role.ASSISTANT, "somebody", before)
            assert len(server.guard.seen) == count


async def test_what_is_harmful_only_together_is_seen(llama: Guarded) -> None:
    """Its beginning ends one window, its end begins the next."""
    answer = await llama.ask(CHAT, "Say apart", stream=True, **policy(output="block"))
    assert (answer.text, answer.ended) == ("All is well, a bad", "content_filter")


async def test_an_answer_that_passes_is_the_same_in_each_mode(llama: Guarded) -> None:
    for api, stream in product((CHAT, RESPONSES), (False, True)):
        plain = await llama.ask(api, "Say much", stream=stream)
        for mode in ("score", "block"):
            answer = await llama.ask(api, "Say much", stream=stream, **policy(output=mode))
            assert (answer.text, answer.ended) == (plain.text, plain.ended)
            assert answer.moderation is not None
        assert plain.moderation is None


TOOL = {"name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", ["Call", "Think"])
async def test_calls_and_reasoning_are_checked_as_well(llama: Guarded, said: str, stream: bool) -> None:
    tools = {CHAT: [{"type": "function", "function": TOOL}], RESPONSES: [{"type": "function", **TOOL}]}
    for api in (CHAT, RESPONSES):
        body = {"model": "chat", "stream": stream, "tools": tools[api], **policy(output="block")}
        body |= {"messages": [{"role": "user", "content": said}]} if api == CHAT else {"input": said}
        response = await llama.http.post(api, json=body)
        assert response.status_code == 200
        assert BAD not in response.text
        assert "content_filter" in response.text


async def test_each_choice_has_a_result(llama: Guarded) -> None:
    for mode in ("score", "block"):
        messages = [{"role": "user", "content": "Say it"}]
        body = {"model": "chat", "messages": messages, "n": 3, **policy(output=mode)}
        answer = (await llama.http.post(CHAT, json=body)).json()
        assert [result["flagged"] for result in answer["moderation"]["output"]["results"]] == [True] * 3
        ends = {choice["finish_reason"] for choice in answer["choices"]}
        assert ends == {"stop" if mode == "score" else "content_filter"}


async def test_what_is_blocked_is_not_stored(llama: Guarded) -> None:
    answer = await llama.http.post(
        CHAT,
        json={
            "model": "chat",
            "messages": [{"role": "user", "content": "Say it"}],
            "store": True,
            "stream": True,
            **policy(output="block"),
        },
    )
    [first, *_] = events(answer.text)
    stored = (await llama.http.get(f"{CHAT}/{first['id']}")).json()
    assert (stored["choices"][0]["finish_reason"], BAD in str(stored["choices"])) == ("content_filter", False)
    assert stored["moderation"]["output"]["results"][0]["flagged"]

    queued = await llama.http.post(
        RESPONSES, json={"model": "chat", "input": "Say it", "background": True, **policy(output="block")}
    )
    body = queued.json()
    while body["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
        body = (await llama.http.get(f"{RESPONSES}/{body['id']}")).json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert body["moderation"]["output"]["flagged"]
    assert BAD not in str(body["output"])


async def test_a_background_response_that_is_blocked_fails(llama: Guarded) -> None:
    given = {"model": "chat", "input": f"Do a {BAD}", "background": True, **policy("block")}
    body = (await llama.http.post(RESPONSES, json=given)).json()
    while body["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
        body = (await llama.http.get(f"{RESPONSES}/{body['id']}")).json()
    assert (body["status"], body["error"]["code"], body["output"]) == ("failed", "invalid_prompt", [])


@pytest.mark.parametrize("mode", ["score", "block"])
async def test_turns_of_a_websocket_are_checked(llama: Guarded, mode: str) -> None:
    async with connected(llama.server) as socket:
        for said, flagged in (("Hello.", False), ("Say it", True)):
            response = await turn(socket, said, model="chat", **policy(output=mode))
            assert response["moderation"]["output"]["flagged"] is flagged
            assert (response["status"] == "incomplete") is (flagged and mode == "block")


@pytest.mark.parametrize("mode", ["score", "block"])
@pytest.mark.parametrize("after", [0, 30, 70])
async def test_a_response_that_is_steered_is_checked_as_well(mode: str, after: int) -> None:
    """It ends while its text is held, as far as it was written; the one with the input is checked, too."""
    chat, said = Halting(), "All is well here. " * 40
    chat.says(said, f"Well, {BAD}", after=after)
    async with guarded(chat=chat) as server, talking(server.server) as talk:
        await talk.create("Go on", model="chat", request_id="held", store=False, **policy(mode, mode))
        await chat.reached()
        await talk.steer("resp_held", "Rather briefly.")
        begun = await talk.until("response.steer.accepted")
        chat.go.set()
        first = await talk.response(begun[:-1])
        second = await talk.response()

    written = "".join(part["text"] for item in first["output"] for part in item["content"])
    assert (first["status"], written) == ("incomplete", said[:after])
    assert first["moderation"]["output"]["flagged"] is False
    assert second["previous_response_id"] == first["id"]
    assert second["moderation"]["output"]["flagged"] is True
    assert (BAD in json.dumps(second["output"])) is (mode == "score")


async def test_all_of_a_conversation_is_checked(llama: Guarded) -> None:
    for place in range(3):
        said = [{"role": role, "content": "Hello."} for role in ("system", "user", "assistant", "user")]
        said[place]["content"] = f"A {BAD}"
        body = {"model": "chat", "messages": said, **policy("block")}
        assert (await llama.http.post(CHAT, json=body)).json()["error"]["code"] == "moderation_blocked"
    document = {"title": "A", "parts": [{"text": f"A {BAD}"}]}
    for beside in (
        {"response_prefix": f"A {BAD}"},
        {"documents": [{"text": "Good."}, document]},
        {"chat_template_kwargs": {"documents": [document]}},
    ):
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], **beside, **policy("block")}
        assert (await llama.http.post(CHAT, json=body)).json()["error"]["code"] == "moderation_blocked"
    first = await llama.http.post(RESPONSES, json={"model": "chat", "input": f"A {BAD}"})
    body = {"model": "chat", "input": "And?", "previous_response_id": first.json()["id"], **policy("block")}
    assert (await llama.http.post(RESPONSES, json=body)).json()["error"]["code"] == "moderation_blocked"


@pytest.mark.parametrize("mode", ["score", "block"])
async def test_guards_read_no_images(llama: Guarded, mode: str) -> None:
    """In `block` what was not read does not pass."""
    image = {"type": "image_url", "image_url": {"url": data_url(png())}}
    body = {"model": "chat", "messages": [{"role": "user", "content": [image]}], **policy(mode)}
    response = await llama.http.post(CHAT, json=body)
    if mode == "block":
        assert response.json()["error"]["code"] == "moderation_blocked"
    else:
        [result] = response.json()["moderation"]["input"]["results"]
        assert not any(types for types in result["category_applied_input_types"].values())


# Guards that fail

BROKEN = {
    "fails": [{"output": "safe", "fail_after": 0}],
    "says something else": [{"output": "I am a poet."}],
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_a_guard_that_fails(script: Any) -> None:
    """The answer says so; one that blocks is an error."""
    async with guarded(told=False, script=script) as server:
        for api, stream in product((CHAT, RESPONSES), (False, True)):
            scored = await server.ask(api, "Hello.", stream=stream, **policy())
            assert (scored.status, scored.text) == (200, "All is well.")
            for side in ("input", "output"):
                error = scored.moderation[side]
                assert (error["type"], error["code"]) == ("error", "moderation_failed")
                assert error["message"]
            for modes in (policy("block"), policy(output="block")):
                blocked = await server.ask(api, "Hello.", stream=stream, **modes)
                assert (blocked.status, blocked.text) == (503, "")
                assert blocked.error["code"] == "moderation_failed"
        response = await server.http.post(MODERATIONS, json={"input": "Hello."})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "moderation_failed")


async def test_a_guard_that_fails_in_the_middle() -> None:
    script = [{"when": BAD, "output": "safe", "fail_after": 0}, {"output": "safe"}]
    async with guarded(told=False, script=script, moderation_window=16) as server:
        streamed = await server.ask(CHAT, "Say late", stream=True, **policy(output="block"))
        assert streamed.error["code"] == "moderation_failed"
        assert streamed.text
        assert BAD not in streamed.text
        body = await server.ask(RESPONSES, "Say late", stream=True, **policy(output="block"))
        assert body.error is not None
        assert BAD not in body.text
        assert server.server.models.loads["chat"].running == 0


async def test_a_guard_that_takes_too_long() -> None:
    script = [{"output": "safe", "delay_ms": 60_000}]
    async with guarded(told=False, script=script, limit=Limits(moderation_seconds=1)) as server:
        response = await server.http.post(MODERATIONS, json={"input": "Hello."})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "moderation_failed")
        assert server.server.models.loads["guard"].running == 0


@pytest.mark.parametrize("path", [MODERATIONS, CHAT, RESPONSES])
@pytest.mark.parametrize("mode", ["score", "block"])
async def test_a_client_that_leaves_frees_the_guard(path: str, mode: str) -> None:
    script = [{"output": "safe", "delay_ms": 60_000}]
    async with guarded(told=False, script=script) as server:
        body = {MODERATIONS: {"input": ["a", "b"]}, CHAT: {"messages": [{"role": "user", "content": "Hi"}]}}
        given = body.get(path, {"input": "Hi"})
        if path != MODERATIONS:
            given = {**given, "model": "chat", **policy(mode)}
        asking = asyncio.create_task(server.http.post(path, json=given))
        await until(lambda: server.server.models.loads["guard"].running)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not server.server.models.loads["guard"].running)
        assert server.server.models.loads["chat"].running == 0
        permits = server.server.app.permits["moderation"]
        assert (permits.running, permits.waiting) == (0, 0)


# Requests that are refused


@pytest.mark.parametrize("moderation", [{"model": "m"}, {"model": "omni-moderation-latest"}])
async def test_a_server_without_a_guard_refuses_by_name(moderation: Any) -> None:
    async with guarded(moderation=None) as server:
        for api in (CHAT, RESPONSES):
            answer = await server.ask(api, "Hello.", moderation=moderation)
            assert (answer.status, answer.error["param"]) == (400, "moderation")
            assert "--moderation" in answer.error["message"]
        response = await server.http.post(MODERATIONS, json={"input": "Hello."})
        assert response.status_code == 404
        assert "--moderation" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "image_url", "image_url": {"url": data_url(png())}}]}, "input[0]"),
        ({"input": [{"type": "text", "text": 5}]}, "input[0].text"),
        ({"input": ["a", {"type": "text", "text": "b"}]}, "input"),
        ({"input": ["a"] * 1025}, "input"),
        ({"input": "a" * 1_000_001}, "input"),
        ({"input": "a", "model": "nobody"}, "model"),
        ({"input": "a", "model": "x" * 300}, "model"),
    ],
)
async def test_bad_requests_name_the_parameter(llama: Guarded, given: Any, param: str) -> None:
    response = await llama.http.post(MODERATIONS, json=given)
    error = response.json()["error"]
    assert response.status_code in (400, 404)
    assert error["param"] == param
    assert error["message"]


async def test_what_is_too_long_is_refused_or_said(llama: Guarded) -> None:
    response = await llama.http.post(MODERATIONS, content=b'{"input": "' + b"a" * 30_000_000 + b'"}')
    assert response.status_code == 413
    async with guarded(limit=Limits(moderation_characters=100)) as server:
        for api in (CHAT, RESPONSES):
            scored = await server.ask(api, "a b " * 30, **policy())
            assert (scored.status, scored.moderation["input"]["code"]) == (200, "limit_exceeded")
            blocked = await server.ask(api, "a b " * 30, **policy("block"))
            assert (blocked.status, blocked.error["code"]) == (400, "limit_exceeded")


@pytest.mark.parametrize(
    ("moderation", "param"),
    [
        ({"model": "nobody"}, "moderation.model"),
        ({}, "moderation.model"),
        ({"model": "guard", "policy": {"input": {"mode": "hide"}}}, "moderation.policy.input.mode"),
        ({"model": "guard", "policy": {"output": {}}}, "moderation.policy.output.mode"),
        ("guard", "moderation"),
    ],
)
async def test_a_bad_policy_is_named(llama: Guarded, moderation: Any, param: str) -> None:
    for api in (CHAT, RESPONSES):
        answer = await llama.ask(api, "Hello.", moderation=moderation)
        assert (answer.status in (400, 404), answer.error["param"]) == (True, param)


async def test_where_there_is_no_moderation_it_is_refused(llama: Guarded) -> None:
    moderation = {"model": "guard"}
    bodies = {
        "/v1/completions": {"prompt": "Hi"},
        "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "Hi"}]]},
        "/v1/responses/compact": {"input": "Hi"},
    }
    for path, body in bodies.items():
        response = await llama.http.post(path, json={"model": "chat", **body, "moderation": moderation})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "moderation"), path


# Keys, metrics, OpenAI's client


def key_file(folder: Path) -> Path:
    """The keys of one who may use all models, and of one who may use no guard."""
    rules = (("one", "tokens_per_minute = 1000"), ("other", 'models = ["chat"]'), ("third", ""))
    tables = [
        f'[[keys]]\nname = "{name}"\nhash = "{sha256(name.encode()).hexdigest()}"\n{rule}\n'
        for name, rule in rules
    ]
    file = folder / "keys.toml"
    file.write_text("\n".join(tables))
    return file


async def test_the_guards_tokens_count_for_the_key(tmp_path: Path) -> None:
    async with guarded(keys=key_file(tmp_path)) as server:
        account = server.server.app.keys.find("one")
        assert account is not None
        assert account.tokens is not None
        said = {"model": "chat", "messages": [{"role": "user", "content": "Hi there, you all." * 9}]}
        used = []
        for path, body in (
            (MODERATIONS, {"input": "Hello there." * 9}),
            (CHAT, said),
            (CHAT, said | policy()),
        ):
            left = account.tokens.left
            response = await server.http.post(path, json=body, headers={"authorization": "Bearer one"})
            assert response.status_code == 200, response.text
            await server.http.get("/health")  # the request before it is over then
            used.append(left - account.tokens.left)
        moderations, plain, moderated = used
        assert moderations > 20
        assert moderated > plain + 20


async def test_a_key_with_much_to_check_does_not_delay_the_others(tmp_path: Path) -> None:
    script = [{"when": "slow", "output": "safe", "delay_ms": 60_000}, {"output": "safe"}]
    async with guarded(told=False, script=script, keys=key_file(tmp_path)) as server:
        one, third = ({"authorization": f"Bearer {key}"} for key in ("one", "third"))
        body = {"input": [f"slow {number}" for number in range(2 * AT_ONCE)]}
        asking = asyncio.create_task(server.http.post(MODERATIONS, json=body, headers=one))
        await until(lambda: server.server.app.permits["moderation"].running == AT_ONCE - 1)
        response = await server.http.post(MODERATIONS, json={"input": "Hello."}, headers=third)
        assert response.status_code == 200
        asking.cancel()
        await until(lambda: server.server.app.permits["moderation"].running == 0)
        assert server.server.app.permits["moderation"].waiting == 0


async def test_keys_share_no_verdicts(tmp_path: Path) -> None:
    """What another key has asked is not known by how soon an answer comes."""
    async with guarded(keys=key_file(tmp_path)) as server:
        seen = []
        for key in ("one", "one", "third"):
            headers = {"authorization": f"Bearer {key}"}
            await server.http.post(MODERATIONS, json={"input": "Hello."}, headers=headers)
            seen.append(len(server.guard.seen))
    assert seen == [3, 3, 6]


async def test_a_key_that_may_not_use_the_guard(tmp_path: Path) -> None:
    async with guarded(keys=key_file(tmp_path)) as server:
        other = {"authorization": "Bearer other"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], **policy()}
        assert (await server.http.post(MODERATIONS, json={"input": "Hi"}, headers=other)).status_code == 404
        refused = await server.http.post(CHAT, json=body, headers=other)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "moderation.model")
        assert (await server.http.post(MODERATIONS, json={"input": "Hi"})).status_code == 401


async def test_verdicts_are_counted(llama: Guarded) -> None:
    before = await counted(llama)
    await llama.ask(CHAT, "Say it, please.", **policy())
    await llama.http.post(MODERATIONS, json={"input": "New."})
    after = await counted(llama)
    grown = {labels: after[labels] - before.get(labels, 0) for labels in after}
    assert {labels for labels, count in grown.items() if count} == {
        ("input", "passed"),
        ("output", "flagged"),
        ("request", "passed"),
    }


async def counted(server: Guarded) -> dict[tuple[str, str], float]:
    text = (await server.http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("antiphon:moderations_total{")]
    found = {}
    for line in lines:
        labels, value = line.partition("{")[2].rsplit("} ", 1)
        named = dict(part.split("=") for part in labels.split(","))
        found[named["subject"].strip('"'), named["outcome"].strip('"')] = float(value)
    return found


async def test_openais_client(llama: Guarded) -> None:
    async with openai.AsyncOpenAI(base_url=f"{llama.server.url}/v1", api_key="any") as client:
        created = await client.moderations.create(input=[{"type": "text", "text": f"A {BAD}"}])
        [result] = created.results
        assert (result.flagged, result.categories.violence, result.categories.hate) == (True, True, False)
        assert result.category_scores.violence > 0.5
        completion = await client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "Say it"}],
            moderation={"model": "omni-moderation-latest", "policy": {"output": {"mode": "block"}}},
        )
        assert completion.choices[0].finish_reason == "content_filter"
        assert completion.moderation is not None
        async with client.responses.stream(
            model="chat", input="Say it", moderation={"model": "omni-moderation-latest"}
        ) as stream:
            response = await stream.get_final_response()
        assert response.moderation is not None
        assert response.moderation.output.type == "moderation_result"
        assert response.moderation.output.flagged
