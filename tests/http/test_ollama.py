"""Ollama's API over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.core.turn import Sampling
from antiphon.engines.scripted import ScriptedEngine
from antiphon.model_tables import KeepLoaded
from antiphon.run.models import Models
from tests.acting import ActingTool
from tests.http.ollama_api import CHAT, GENERATE, chat, ollama
from tests.media import encoded, png
from tests.server import served_model

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1]}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"when": "broken json", "output": '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": [2'},
    {"when": "call", "output": f"<think>Let me see.</think>Well:{CALL}{CALL}"},
    {"when": "break", "output": "one two three", "fail_after": 1},
    {"when": "slow", "output": "one two", "delay_ms": 200},
    {"output": "Hello there!"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


# Answers


async def test_a_conversation() -> None:
    async with ollama(SCRIPT) as api:
        answer = await api.chat("Hi")
        assert answer == {
            "model": "scripted",
            "message": {"role": "assistant", "content": "Hello there!"},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": answer["prompt_eval_count"],
            "eval_count": 3,
        }
        assert "<|im_start|>user\nHi" in api.prompt
        [*_, last] = await api.lines(CHAT, chat("Hi"))
        parts = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
        assert 0 < parts <= last["total_duration"] + 10_000_000
        assert last["created_at"].endswith("Z")


async def test_reasoning_and_calls_are_apart() -> None:
    async with ollama(SCRIPT) as api:
        message = (await api.chat("call", tools=TOOLS))["message"]
        assert (message["thinking"], message["content"]) == ("Let me see.", "Well:")
        assert [call["function"] for call in message["tool_calls"]] == [
            {"index": index, "name": "f", "arguments": {"a": [1]}} for index in (0, 1)
        ]
        lines = await api.lines(CHAT, chat("call", tools=TOOLS))
        assert sum("tool_calls" in line["message"] for line in lines) == 2


async def test_the_arguments_of_a_call_that_is_cut_are_an_object() -> None:
    async with ollama(SCRIPT) as api:
        answer = await api.chat("broken json", tools=TOOLS)
    [call] = answer["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"a": 1, "b": [2]}


async def test_calls_without_ids_get_their_results_by_name_and_order() -> None:
    def called(name: str, **more: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {}}, **more}

    said = [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "thinking": "Hm.",
            "tool_calls": [called("f"), called("g"), called("f", id="x")],
        },
        {"role": "tool", "tool_call_id": "x", "content": "third"},
        {"role": "tool", "tool_name": "g", "content": "second"},
        {"role": "tool", "content": "first"},
    ]
    async with ollama(SCRIPT) as api:
        await api.chat(said)
        places = [api.prompt.find(text) for text in ("first", "second", "third")]
    assert -1 not in places
    assert places == sorted(places)


async def test_tools_of_the_server_are_run_and_not_shown() -> None:
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "6*7"}}\n</tool_call>'
    script = [{"when": "<tool_response>", "output": "It is 42."}, {"output": f"Let me see.{call}"}]
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    async with ollama(script, tools=[ActingTool()]) as api:
        answer = await api.chat("Hi", tools=tools)
    assert answer["message"] == {"role": "assistant", "content": "Let me see.\n\nIt is 42."}
    assert len(answer["generations"]) == 2


async def test_a_last_message_of_the_assistant_is_continued() -> None:
    async with ollama(SCRIPT) as api:
        await api.chat([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}])
        assert api.prompt.endswith("Well, ")


async def test_images_of_messages_and_of_prompts() -> None:
    image = encoded(png())
    async with ollama(SCRIPT) as api:
        await api.chat([{"role": "user", "content": "Look", "images": [image]}])
        assert len(api.seen.prompt.media) == 1
        await api.generate("Look", images=[image])
        assert len(api.seen.prompt.media) == 1
        wrong = [{"role": "user", "content": "Look", "images": ["bm8gaW1hZ2U="]}]
        assert "messages[0].images[0]" in await api.refused(CHAT, {"messages": wrong})
        assert "images[0]" in await api.refused(GENERATE, {"prompt": "a", "images": ["bm8gaW1hZ2U="]})


@pytest.mark.parametrize(
    ("think", "begins"), [(True, True), (False, False), (None, False), ("high", True), ("none", False)]
)
async def test_think(think: object, begins: bool) -> None:
    async with ollama(SCRIPT) as api:
        for ask in (api.chat, api.generate):
            await ask("Hi", think=think)
            assert api.prompt.endswith("<think>\n") is begins


async def test_formats() -> None:
    script = [{"output": '{"a": 1}'}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with ollama(script) as api:
        for format_ in ("json", schema):
            assert "unmet" not in await api.chat("Hi", format=format_)
        wrong = {"type": "object", "properties": {"a": {"type": "string"}}}
        assert "format" in (await api.chat("Hi", format=wrong))["unmet"][0]
        assert "unmet" not in await api.generate("Hi", format="")
        for bad in ("yaml", 3, {"type": 1}):
            assert "format" in await api.refused(CHAT, {**chat("Hi"), "format": bad})


async def test_options_are_parameters() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.1,
        "repeat_penalty": 1.5,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "seed": 3,
        "stop": ["!"],
        "num_predict": 9,
    }
    async with ollama(SCRIPT) as api:
        answer = await api.chat("Hi", options=options)
        assert answer["message"]["content"] == "Hello there"
        sampling: Sampling = api.seen.sampling
        given = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed)
        assert given == (0.5, 7, 0.5, 0.1, 3)
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        assert penalties == (1.5, 1, -1)
        assert api.seen.max_tokens == 9
        assert "notes" not in answer


@pytest.mark.parametrize("limit", [None, -1, -2, 0])
async def test_an_answer_without_a_limit(limit: int | None) -> None:
    async with ollama(SCRIPT) as api:
        assert (await api.chat("Hi", options={"num_predict": limit}))["done_reason"] == "stop"
        assert api.seen.max_tokens > 10_000


async def test_an_answer_that_is_cut() -> None:
    async with ollama(SCRIPT) as api:
        answer = await api.generate("Hi", options={"num_predict": 2})
    assert (answer["done_reason"], answer["response"], answer["eval_count"]) == ("length", "Hello there", 2)


async def test_log_probabilities() -> None:
    async with ollama(SCRIPT) as api:
        answer = await api.chat("Hi", logprobs=True, top_logprobs=2)
        assert [token["token"] for token in answer["logprobs"]] == ["Hello", " there", "!"]
        assert {len(token["top_logprobs"]) for token in answer["logprobs"]} == {2}
        assert len((await api.generate("Hi", logprobs=True))["logprobs"]) == 3


async def test_what_has_no_effect_is_noted() -> None:
    options = {"num_ctx": 4096, "num_gpu": 1, "use_mmap": True, "penalize_newline": True}
    async with ollama(SCRIPT) as api:
        with capture_logs() as logs:
            answer = await api.chat("Hi", options=options, keep_alive="5m", shift=True)
        names = {note["param"] for note in answer["notes"]}
        assert names == {*options, "keep_alive", "shift"}
        logged = [line for line in logs if line["event"] == "parts of a request have no effect"]
        assert len(logged[0]["notes"]) == len(names)


async def test_a_conversation_that_is_too_long() -> None:
    said = [{"role": "user", "content": "old " * 300}, {"role": "user", "content": "Hi"}]
    engine = ScriptedEngine(SCRIPT, context=256)
    async with ollama(engine) as api:
        body = {**chat(said), "model": "scripted"}
        assert "messages" in await api.refused(CHAT, body)
        assert (await api.chat(said, truncate=True))["message"]["content"] == "Hello there!"
        assert "old" not in api.prompt


# Prompts


async def test_a_prompt_in_its_template() -> None:
    async with ollama(SCRIPT) as api:
        answer = await api.generate("Hi", system="Be brief.")
        assert answer["response"] == "Hello there!"
        assert "message" not in answer
        assert "<|im_start|>system\nBe brief." in api.prompt
        assert "<|im_start|>user\nHi" in api.prompt


async def test_a_raw_prompt_is_read_as_it_is() -> None:
    async with ollama(SCRIPT) as api:
        await api.generate("Hi", raw=True)
        assert api.prompt == "Hi"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"template": "{{ .Prompt }}"}, "'template'"),
        ({"context": [1, 2]}, "'context'"),
        ({"width": 512}, "'width'"),
        ({"raw": True, "system": "a"}, "'system'"),
        ({"raw": True, "images": ["aGk="]}, "'images'"),
        ({"raw": True, "think": True}, "'think'"),
        ({"suffix": "a", "system": "a"}, "'system'"),
        ({"tools": TOOLS}, "'tools'"),
        ({"top_logprobs": 3}, "'top_logprobs'"),
        ({"options": {"temperature": -1}}, "'options.temperature'"),
        ({"options": {"num_predict": -3}}, "'options.num_predict'"),
        ({"options": {"min_tokens": 9, "num_predict": 3}}, "'options.min_tokens'"),
        ({"think": "a lot"}, "'think'"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": []}, "'keep_alive'"),
    ],
)
async def test_what_is_refused_is_named(fields: dict[str, Any], named: str) -> None:
    async with ollama(SCRIPT) as api:
        assert named in await api.refused(GENERATE, {"prompt": "Hi", **fields})


async def test_custom_tools_are_refused() -> None:
    async with ollama(SCRIPT) as api:
        tools = [{"type": "custom", "custom": {"name": "run"}}]
        assert "tools" in await api.refused(CHAT, chat("Hi", tools=tools))


async def test_what_asks_for_nothing_is_no_reason_to_refuse() -> None:
    nothing = {
        "template": "",
        "context": [],
        "system": "",
        "suffix": "",
        "format": "",
        "images": None,
        "options": None,
    }
    async with ollama(SCRIPT) as api:
        assert (await api.generate("Hi", raw=False, **nothing))["response"] == "Hello there!"


# Errors, and what else happens to streams


async def test_errors_have_ollamas_form_and_status() -> None:
    async with ollama(SCRIPT) as api:
        assert "'nobody' does not exist" in await api.refused(CHAT, {**chat("Hi"), "model": "nobody"}, 404)
        response = await api.http.post(CHAT, content=b"{")
        assert (response.status_code, [*response.json()]) == (400, ["error"])
        response = await api.http.get(CHAT)
        assert (response.status_code, [*response.json()]) == (405, ["error"])
        roles = [{"role": "nobody", "content": "a"}]
        assert "'messages[0].role'" in await api.refused(CHAT, {"messages": roles})


async def test_an_answer_that_fails_ends_with_a_line() -> None:
    async with ollama(SCRIPT) as api:
        response = await api.http.post(CHAT, json=chat("break"))
        assert response.status_code == 200
        *parts, last = map(json.loads, response.text.splitlines())
        assert parts
        assert last.keys() == {"error"}


async def test_a_stream_is_kept_alive_without_lines() -> None:
    async with ollama(SCRIPT, keep_alive=0.05) as api:
        content = (await api.http.post(CHAT, json=chat("slow"))).content
    assert content.startswith(b" ")
    assert all(json.loads(line) for line in content.splitlines())


async def test_any_content_type_will_do() -> None:
    async with ollama(SCRIPT) as api:
        head = {"content-type": "application/x-www-form-urlencoded"}  # curl's
        response = await api.http.post(CHAT, content=json.dumps(chat("Hi")), headers=head)
        assert response.status_code == 200


# Loading


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_a_request_that_says_nothing_loads_and_unloads(path: str) -> None:
    small, large = (
        served_model(ScriptedEngine(SCRIPT, name=name, memory=100), dialect="hermes", model_name=(name,))
        for name in ("small", "large")
    )
    models = Models([small, large], keep=KeepLoaded(models=1))
    async with ollama([], models=models) as api:
        assert [entry["name"] for entry in (await api.get("/api/ps"))["models"]] == ["small"]
        for body in ({"model": "large"}, {"model": "large", "messages": [], "prompt": "", "keep_alive": -1}):
            body.pop("messages" if path == GENERATE else "prompt", None)
            [line] = await api.lines(path, body)
            assert (line["done"], line["done_reason"]) == (True, "load")
        assert [entry["name"] for entry in (await api.get("/api/ps"))["models"]] == ["large"]
        answer = await api.post(path, {"model": "large", "keep_alive": "0s", "stream": False})
        assert (answer["done_reason"], large.loaded) == ("unload", False)
        await api.post(path, {"model": "large", "keep_alive": 0, "stream": False})
        assert (await api.get("/api/ps"))["models"] == []
        spoken = {**chat("Hi"), "prompt": "Hi", "model": "large", "keep_alive": 0, "stream": False}
        spoken.pop("prompt" if path == CHAT else "messages")
        assert (await api.post(path, spoken))["done_reason"] == "stop"
        assert not large.loaded


async def test_a_model_that_others_use_stays_loaded() -> None:
    async with ollama(ScriptedEngine(SCRIPT, memory=100)) as api:
        slow = asyncio.create_task(api.post(CHAT, {**chat("slow"), "stream": False}))
        while not api.server.models.loads["scripted"].running:
            await asyncio.sleep(0.01)
        unload = {"model": "scripted", "keep_alive": 0}
        assert "Other requests use the model" in (await api.post(CHAT, unload, 409))["error"]
        assert (await slow)["message"]["content"] == "one two"


async def test_only_an_administrator_unloads_for_others(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        '[[keys]]\nname = "ann"\nvalue = "ann\'s"\n'
        '[[keys]]\nname = "root"\nvalue = "root\'s"\nscopes = ["inference", "admin"]\n'
    )
    for key, status in (("ann's", 403), ("root's", 200)):
        head = {"authorization": f"Bearer {key}"}
        async with ollama(ScriptedEngine(SCRIPT, memory=100), head, keys=file) as api:
            await api.post(CHAT, {"model": "scripted", "keep_alive": 0, "stream": False}, status)
            spoken = await api.post(CHAT, {**chat("Hi"), "keep_alive": 0, "stream": False})
            assert ("notes" in spoken) is (status == 403)


async def test_a_model_without_memory_stays_and_is_noted() -> None:
    async with ollama(SCRIPT) as api:
        [note] = (await api.chat("Hi", keep_alive=0))["notes"]
        assert (note["param"], note["message"][:16]) == ("keep_alive", "The model stays ")
        assert "memory" in await api.refused(CHAT, {"keep_alive": 0})
        assert (await api.post("/api/embed", {"model": "scripted", "input": "a", "keep_alive": 0}))[
            "embeddings"
        ]


async def test_embedding_and_then_unloading() -> None:
    async with ollama(ScriptedEngine(SCRIPT, memory=100)) as api:
        for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
            await api.post(path, {"model": "scripted", field: "a", "keep_alive": 0})
            assert (await api.get("/api/ps"))["models"] == []
            await api.post(path, {"model": "scripted"})
            assert len((await api.get("/api/ps"))["models"]) == 1


async def test_the_time_for_loading_is_told() -> None:
    class Slow(ScriptedEngine):
        async def start(self) -> None:
            await asyncio.sleep(0.05)
            await super().start()

    async with ollama(Slow(SCRIPT, memory=100)) as api:
        await api.post(CHAT, {"model": "scripted", "keep_alive": 0, "stream": False})
        cold = await api.post(CHAT, {**chat("Hi"), "stream": False})
        warm = await api.post(CHAT, {**chat("Hi"), "stream": False})
    assert warm["load_duration"] == 0
    assert 50_000_000 <= cold["load_duration"] < cold["total_duration"]
    assert cold["prompt_eval_duration"] < cold["load_duration"]


# Vectors


async def test_vectors() -> None:
    async with ollama(SCRIPT) as api:
        [served] = [await api.post("/v1/embeddings", {"model": "scripted", "input": ["a", "b"]})]
        expected = [entry["embedding"] for entry in served["data"]]
        body = await api.post("/api/embed", {"model": "scripted", "input": ["a", "b"]})
        assert body["embeddings"] == expected
        assert body["prompt_eval_count"] == served["usage"]["prompt_tokens"]
        one = await api.post("/api/embed", {"model": "scripted", "input": "a", "keep_alive": "5m"})
        assert one["embeddings"] == expected[:1]
        old = await api.post("/api/embeddings", {"model": "scripted", "prompt": "a"})
        assert old == {"embedding": expected[0]}
        for body in ({"input": []}, {"input": ""}, {}):
            assert (await api.post("/api/embed", {"model": "scripted", **body}))["embeddings"] == []
        assert await api.post("/api/embeddings", {"model": "scripted", "prompt": ""}) == {"embedding": []}
        assert "input" in (await api.post("/api/embed", {"model": "scripted", "input": 3}, 400))["error"]


# Models


async def test_what_is_told_of_models() -> None:
    async with ollama(SCRIPT) as api:
        [tag] = (await api.get("/api/tags"))["models"]
        assert (tag["name"], tag["model"], tag["details"]["family"]) == ("scripted", "scripted", "hermes")
        assert len(tag["digest"]) == 64
        [now] = (await api.get("/api/ps"))["models"]
        context = (await api.get("/v1/models"))["data"][0]["max_model_len"]
        assert now["context_length"] == context
        for name in ({"model": "scripted"}, {"name": "scripted:latest"}):
            shown = await api.post("/api/show", name)
            family = shown["model_info"]["general.architecture"]
            assert shown["model_info"][f"{family}.context_length"] == context
            assert {"completion", "tools", "thinking", "vision"} <= {*shown["capabilities"]}
            assert "messages" in shown["template"]
        assert "'nobody'" in (await api.post("/api/show", {"model": "nobody"}, 404))["error"]
        assert "'model'" in (await api.post("/api/show", {}, 400))["error"]
        assert (await api.get("/api/version"))["version"].count(".") == 2


async def test_the_tag_that_clients_add() -> None:
    async with ollama(SCRIPT) as api:
        assert (await api.chat("Hi", model="scripted:latest"))["model"] == "scripted:latest"
        await api.refused(CHAT, chat("Hi", model="scripted:8b"), 404)


async def test_models_are_not_managed() -> None:
    async with ollama(SCRIPT) as api:
        pulled = await api.http.post("/api/pull", json={"model": "scripted"})
        assert [json.loads(line) for line in pulled.text.splitlines()] == [{"status": "success"}]
        assert await api.post("/api/pull", {"name": "scripted", "stream": False}) == {"status": "success"}
        assert "not fetched" in (await api.post("/api/pull", {"model": "nobody"}, 404))["error"]
        for path in ("/api/push", "/api/create", "/api/copy", "/api/blobs/sha256:1"):
            assert path in (await api.post(path, {}, 400))["error"]
        assert (await api.http.delete("/api/delete")).status_code == 400
        assert (await api.http.head("/api/blobs/sha256:1")).status_code == 400


@pytest.mark.parametrize(
    ("accept", "page"),
    [("application/json", False), ("text/html,*/*;q=0.8", True), ("*/*", True), ("text/plain", False)],
)
async def test_what_stands_at_the_root(accept: str, page: bool) -> None:
    async with ollama(SCRIPT) as api:
        response = await api.http.get("/", headers={"accept": accept})
        assert response.text.startswith("<!") if page else response.text == "Ollama is running"
        assert response.headers["vary"] == "accept"
        assert (await api.http.head("/", headers={"accept": accept})).status_code == 200
