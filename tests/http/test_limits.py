"""What is over a limit is refused by its name, before any work."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.client import connect

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.tools import tools_of as chat_tools_of
from antiphon.apis.responses.tool_choice import tool_choice
from antiphon.apis.responses.tools import toolbox
from antiphon.apis.wire import decode
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts
from antiphon.core.limits import Limits
from antiphon.engines.scripted import ScriptedEngine
from tests.counting import lines
from tests.http.api import Api, ask, user
from tests.run.support import until
from tests.server import NO_TLS, Running, running

SCRIPT = [{"output": "one two three four five six"}]
SMALL = Limits(
    references=2,
    history_bytes=5_000,
    answer_bytes=1_000,
    name_characters=8,
    stop_characters=8,
    small_body_bytes=200,
    tools=10_000,
)


@asynccontextmanager
async def serving(limits: Limits = SMALL, **stored: int) -> AsyncIterator[tuple[Running, Api]]:
    async with (
        running(SCRIPT, limit=replace(limits, **stored)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as http,
    ):
        yield server, Api(http)


ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], **fields}


async def refused(api: Api, path: str, body: Any, limit: str, status: int = 400) -> Any:
    error = (await api.post(path, body, status))["error"]
    assert error["code"] == "limit_exceeded"
    assert f"the limit '{limit}' of this server" in error["message"]
    return error["param"]


async def test_a_history_that_weighs_too_much() -> None:
    async with serving() as (server, api):
        path = await api.conversation(user("x" * 3000))
        name = path.rpartition("/")[2]
        await api.create("Hi", conversation=name)
        first = await api.create("x" * 3000)
        second = await api.create("x" * 3000, previous_response_id=first["id"])
        await api.post(f"{path}/items", {"items": [user("x" * 3000)]})
        asked = server.engine.steps
        over = ask("Hi", conversation=name)
        assert await refused(api, "/responses", over, "history_bytes") == "conversation"
        assert await refused(api, "/responses/input_tokens", over, "history_bytes") == "conversation"
        over = ask("Hi", previous_response_id=second["id"])
        assert await refused(api, "/responses", over, "history_bytes") == "previous_response_id"
        assert server.engine.steps == asked


async def test_there_is_no_room_for_more() -> None:
    async with serving(stored_bytes=20_000, conversation_bytes=4_000) as (server, api):
        path = await api.conversation(user("x" * 3000))
        asked, over = server.engine.steps, ask("x" * 600, conversation=path.rpartition("/")[2])
        assert await refused(api, "/responses", over, "conversation_bytes") == "conversation"
        more = {"items": [user("x" * 600)]}
        assert await refused(api, path.removeprefix("/v1") + "/items", more, "conversation_bytes") == "items"
        much = "x" * 18_000
        assert await refused(api, "/responses", ask(much), "stored_bytes") == "store"
        assert await refused(api, "/responses", ask(much, background=True), "stored_bytes") == "store"
        said = {"messages": [{"role": "user", "content": much}]}
        assert (
            await refused(api, "/chat/completions", chat() | said | {"store": True}, "stored_bytes")
            == "store"
        )
        assert server.engine.steps == asked
        await api.create(much, store=False)
        params = {"model": "scripted", "max_tokens": 5, **said}
        batch = {"requests": [{"custom_id": "a", "params": params}]}
        refusal = await api.http.post("/messages/batches", json=batch)
        assert (refusal.status_code, "'stored_bytes'" in refusal.text) == (400, True)


async def test_references() -> None:
    async with serving() as (_, api):
        path = await api.conversation(user("x" * 3000))
        [item] = (await api.get(f"{path}/items"))["data"]
        reference = {"type": "item_reference", "id": item["id"]}
        await api.create([reference])
        assert await refused(api, "/responses", ask([reference] * 2), "history_bytes") == "input"
        assert await refused(api, "/responses", ask([reference] * 3), "references") == "input"
        items = {"items": [reference] * 3}
        assert await refused(api, "/conversations", items, "references") == "items"


async def test_an_answer_has_no_more_tokens_than_there_is_room_for() -> None:
    async with serving() as (_, api):
        answer = await api.post("/chat/completions", chat(n=2))
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 2
        assert answer["usage"]["completion_tokens"] == 10
        wanted = chat(n=2, max_tokens=6)
        assert await refused(api, "/chat/completions", wanted, "answer_bytes") == "max_tokens"
        for path, name, body in (
            ("/chat/completions", "max_completion_tokens", chat(n=2)),
            ("/chat/completions", "max_new_tokens", chat(n=2)),
            ("/responses", "max_output_tokens", ask("Hi")),
            ("/responses", "max_tokens", ask("Hi")),
        ):
            assert await refused(api, path, {**body, name: 100}, "answer_bytes") == name
        scored = chat(logprobs=True, top_logprobs=3, max_tokens=3)
        assert await refused(api, "/chat/completions", scored, "answer_bytes") == "max_tokens"
        batch = {"model": "scripted", "messages": [chat()["messages"]] * 2, "max_tokens": 6}
        assert await refused(api, "/chat/completions/batch", batch, "answer_bytes") == "max_tokens"


async def test_log_probabilities_count_as_often_as_an_answer_tells_them() -> None:
    limits = Limits(answer_bytes=1_600)
    scored = {"logprobs": True, "max_tokens": 5}
    told = {"include": ["message.output_text.logprobs"], "max_output_tokens": 2}
    async with serving(limits) as (_, api):
        streamed = await api.http.post(
            "/chat/completions", json=chat(stream=True, **scored | {"max_tokens": 6})
        )
        assert streamed.text.count('"logprob"') == 6
        assert await refused(api, "/chat/completions", chat(**scored | {"max_tokens": 6}), "answer_bytes")
        whole = await api.post("/chat/completions", chat(**scored))
        assert len(whole["choices"][0]["logprobs"]["content"]) == 5
        assert await refused(api, "/responses", ask("Hi", **told | {"max_output_tokens": 3}), "answer_bytes")
        assert (await api.create("Hi", **told))["usage"]["output_tokens"] == 2


async def test_a_prompt_spells_no_more_special_tokens_than_the_context_holds() -> None:
    async with serving(Limits()) as (server, api):
        context = server.engine.card.context
        for path, body in (
            ("/chat/completions", chat(messages=[user("<|a|>" * (context + 1))])),
            ("/../tokenize", chat(messages=[user("<|a|>" * (context + 1))])),
        ):
            error = (await api.post(path, body, 400))["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        counted = await api.post("/../tokenize", chat(messages=[user("<|a|>" * (context // 16))]))
        assert counted["count"] > context // 16


async def test_echoes_of_a_prompt_are_of_an_answer() -> None:
    async with serving() as (_, api):
        echo = {"model": "scripted", "prompt": "x" * 400, "echo": True, "max_tokens": 1}
        assert (await api.post("/completions", {**echo, "n": 2}))["choices"][1]["text"].startswith("xxx")
        assert await refused(api, "/completions", {**echo, "n": 3}, "answer_bytes") == "echo"
        ids = {**echo, "prompt": [[1] * 100] * 3}
        assert await refused(api, "/completions", ids, "answer_bytes") == "echo"


async def test_where_there_are_no_keys_each_address_is_a_client() -> None:
    script = [{"when": "much", "output": "word ", "tokens": 10**6, "delay_ms": 1}, {"output": "Hi"}]
    ended: list[str] = []

    async def answer(http: httpx.AsyncClient, name: str) -> None:
        assert (await http.post(path, json=chat())).status_code == 200
        ended.append(name)

    path, much = "/chat/completions", chat(stream=True, messages=[{"role": "user", "content": "much"}])
    async with (
        asyncio.timeout(10),
        running(script, parallel=2, limit=Limits(client_waiting=1)) as server,
        at_address(server, "127.0.0.2") as one,
        at_address(server, "127.0.0.3") as other,
        one.stream("POST", path, json=much),
    ):
        async with one.stream("POST", path, json=much):
            waiting = [asyncio.create_task(answer(one, "one"))]
            await until(lambda: server.engine.load.waiting == 1)
            refusal = await one.post(path, json=chat())
            assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
            assert "this client" in refusal.json()["error"]["message"]
            waiting.append(asyncio.create_task(answer(other, "other")))
            await until(lambda: server.engine.load.waiting == 2)
        await asyncio.gather(*waiting)
        assert ended == ["other", "one"]  # who has no slot comes before who has one


def at_address(server: Running, address: str) -> httpx.AsyncClient:
    """A client whose connections come from this address."""
    transport = httpx.AsyncHTTPTransport(verify=NO_TLS, local_address=address)
    return httpx.AsyncClient(transport=transport, base_url=f"{server.url}/v1")


@pytest.mark.parametrize("how", [{}, {"n": 2}, {"stream": True}, {"max_tokens": 10**6}])
async def test_what_is_refused_leaves_nothing_for_the_garbage_collector(how: dict[str, Any]) -> None:
    def left() -> list[Any]:
        return [each for each in gc.get_objects() if isinstance(each, RequestError)]

    async with serving(Limits()) as (_, api):
        await api.post("/chat/completions", chat())
        gc.collect()
        before = len(left())
        gc.disable()
        try:
            long = [{"role": "user", "content": "word " * 50_000}]
            for _ in range(3):
                await api.post("/chat/completions", chat(messages=long, **how), 400)
            await until(lambda: len(left()) == before)
        finally:
            gc.enable()


async def test_names_and_stop_strings() -> None:
    async with serving() as (_, api):
        name = "f" * 9
        for path, body, where in (
            (
                "/chat/completions",
                chat(tools=[{"type": "function", "function": {"name": name}}]),
                "function.name",
            ),
            ("/chat/completions", chat(tools=[{"type": "custom", "custom": {"name": name}}]), "custom.name"),
            (
                "/responses",
                {"model": "scripted", "input": "Hi", "tools": [{"type": "function", "name": name}]},
                "name",
            ),
            (
                "/responses",
                {"model": "scripted", "input": "Hi", "tools": [{"type": "custom", "name": name}]},
                "name",
            ),
        ):
            assert await refused(api, path, body, "name_characters") == f"tools[0].{where}"
        assert await refused(api, "/chat/completions", chat(stop=["x" * 9]), "stop_characters") == "stop"
        await api.post("/chat/completions", chat(stop=["x" * 8], max_tokens=1))


NAMING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "Hi"}]]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/completions/render": {"prompt": "Hi"},
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {}},
    "/infill": {"input_prefix": "Hi", "input_suffix": "you"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/responses/compact": {"input": "Hi"},
    "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses/render": {"input": "Hi"},
    "/v1/messages/render": {"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/decisions": {"input": "Hi", "questions": [{"type": "predicate", "instructions": "Is it?"}]},
    "/v1/systemone": {"state": "Hi", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"prompt": "Hi"},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
}
"""Each endpoint that computes with a model which its body names."""


@pytest.mark.parametrize("path", NAMING)
@pytest.mark.parametrize("default", [None, "scripted"])
async def test_names_of_models(path: str, default: str | None) -> None:
    """They are short, although a default model answers for any name."""
    long = "x" * 9
    async with serving() as (server, api):
        server.models.default = default
        answer = await api.http.post(f"{server.url}{path}", json={"model": long, **NAMING[path]})
    error = answer.json()["error"]
    wrong = 422 if path == "/v1/systemone" else 400
    if isinstance(error, str):  # Ollama's, which have the name in their text
        error = {"message": error}
    assert (answer.status_code, error.get("param", "model")) == (wrong, "model"), answer.text
    assert "the limit 'name_characters' of this server" in error["message"]
    assert long not in answer.text


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_names_of_models_in_forms(path: str) -> None:
    async with serving() as (server, api):
        form: dict[str, Any] = {"files": {"file": ("a.wav", b"RIFF")}, "data": {"model": "x" * 9}}
        answer = await api.http.post(f"{server.url}{path}", **form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model"), answer.text
    assert "the limit 'name_characters' of this server" in answer.json()["error"]["message"]


async def test_names_of_models_in_a_batch() -> None:
    params = {"model": "x" * 9, **NAMING["/v1/messages"]}
    async with serving() as (server, api):
        server.models.default = "scripted"
        requests = [{"custom_id": "a", "params": params}]
        made = (await api.http.post(f"{server.url}/v1/messages/batches", json={"requests": requests})).json()
        url = f"{server.url}/v1/messages/batches/{made['id']}"
        while (await api.http.get(url)).json()["processing_status"] != "ended":
            await asyncio.sleep(0.02)
        result = json.loads((await api.http.get(f"{url}/results")).text)["result"]
    assert result["type"] == "errored"
    assert "the limit 'name_characters' of this server" in result["error"]["error"]["message"]


async def test_a_body_that_only_has_metadata() -> None:
    async with serving() as (_, api):
        path = await api.conversation()
        metadata = {"metadata": {"a": "x" * 300}}
        await refused(api, path, metadata, "small_body_bytes", 413)


async def test_a_conversation_that_no_context_can_hold_is_not_rendered() -> None:
    engine = ScriptedEngine(SCRIPT, context=10)
    async with (
        running(engine) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as http,
    ):
        messages = [{"role": "user", "content": "x" * 800}] * 2
        error = (await Api(http).post("/chat/completions", chat(messages=messages), 400))["error"]
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        assert "1600 characters" in error["message"]  # those of the messages, without the template's


async def test_tools_that_are_named_one_by_one_cost_the_same_each() -> None:
    def choice(count: int) -> None:
        tools = [{"type": "function", "function": {"name": f"f{each}"}} for each in range(count)]
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
        body = msgspec.json.encode(chat(tools=tools, tool_choice=allowed))
        chat_tools_of(decode(body, ChatRequest), Hosts())

    def responses_choice(count: int) -> None:
        tools = [{"type": "function", "name": f"f{each}"} for each in range(count)]
        tool_choice({"type": "allowed_tools", "tools": tools}, toolbox(tools, Hosts()), None)

    for choose in (choice, responses_choice):
        few, many = (lines(partial(choose, count)) for count in (100, 400))
        assert many < 6 * few


async def test_turns_that_only_a_websocket_knows_weigh_the_same() -> None:
    async with (
        serving() as (server, _),
        connect(server.url.replace("http", "ws") + "/v1/responses") as socket,
    ):

        async def turn(**fields: Any) -> Any:
            create = {
                "type": "response.create",
                **ask("x" * 3000, store=False, max_output_tokens=1, **fields),
            }
            await socket.send(json.dumps(create))
            async with asyncio.timeout(10):
                while (event := json.loads(await socket.recv()))["type"] not in ENDS:
                    pass
            return event

        first = await turn()
        second = await turn(previous_response_id=first["response"]["id"])
        error = (await turn(previous_response_id=second["response"]["id"]))["error"]
        assert (error["code"], error["param"]) == ("limit_exceeded", "previous_response_id")


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/../tokenize", {"model": "scripted"}, "count"),
        ("/responses/input_tokens", {"model": "scripted", "input": []}, "input_tokens"),
        ("/messages/count_tokens", {"model": "scripted"}, "input_tokens"),
    ],
)
async def test_what_is_only_counted_may_be_longer_than_any_answer_could_have(
    path: str, body: Any, count: str
) -> None:
    """It has more characters than any tokens of the context could."""
    engine = ScriptedEngine(SCRIPT, context=8)
    async with (
        running(engine) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as http,
    ):
        api, long = Api(http), [user("word " * 300)]
        fields = {"input": long} if "input" in body else {"messages": long}
        assert (await api.post(path, body | fields))[count] > 300
        refused = await api.post("/chat/completions", chat(messages=long), 400)
        assert refused["error"]["code"] == "context_length_exceeded"
