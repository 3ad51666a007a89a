"""Requests as token ids (/render of every API), and ids continued with ids, over HTTP.

`specs/vllm_generate.json` has what the classes of vLLM write: answers have every field of it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.run.token_model import TokenModel
from tests.http.chat_api import ChatApi, chatting, events
from tests.media import data_url, png
from tests.run.support import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

VLLM = json.loads((Path(__file__).parent.parent / "specs" / "vllm_generate.json").read_bytes())
SCRIPT: list[dict[str, Any]] = [
    {"when": "eels", "output": "eleven eager eels", "split": 3},
    {"when": "think", "output": "<think>see</think>seen"},
    {"output": "Fine."},
]
SAID = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "eels"}]
GENERATE = "/inference/v1/generate"
CHAT, TEXT, RESPONSES, MESSAGES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")
)
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAID, "max_tokens": 50},
    TEXT: {"prompt": "eels", "max_tokens": 50},
    RESPONSES: {"input": "eels", "instructions": "Be kind.", "max_output_tokens": 50},
    MESSAGES: {"messages": SAID[1:], "system": "Be kind.", "max_tokens": 50},
}
SAMPLED: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["zz"],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "stop_token_ids": [9],
    "ignore_eos": True,
    "logit_bias": {"5": 1.0},
    "bad_words": ["x"],
    "include_stop_str_in_output": True,
    "allowed_token_ids": [1, 2],
    "vllm_xargs": {"a": 1},
    "skip_special_tokens": False,
}
"""Parameters that every API has, and vLLM's `sampling_params`."""
BESIDE: Mapping[str, Any] = {"priority": 2, "cache_salt": "salt"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[ChatApi]:
    engine = ScriptedEngine(SCRIPT, context=4096)
    async with chatting(engine) as api:
        yield api


async def renderings(api: ChatApi, path: str, **fields: Any) -> Any:
    """What a request of this API is rendered to."""
    response = await api.http.post(f"{path}/render", json={"model": "scripted", **BODIES[path], **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def ids_of(api: ChatApi, text: str) -> list[int]:
    """The tokens of a text."""
    return (await api.post("/tokenize", {"model": "scripted", "prompt": text}))["tokens"]


async def rendered(api: ChatApi, path: str, **fields: Any) -> dict[str, Any]:
    """What a request of this API is rendered to; of a completion's prompts the only one."""
    answers = await renderings(api, path, **fields)
    if path != TEXT:
        return answers
    [answer] = answers
    return answer


async def generated(api: ChatApi, request: Mapping[str, Any], *, stream: bool) -> list[dict[str, Any]]:
    """The choices of an answer to it; those of a stream are what its chunks add up to."""
    response = await api.http.post(GENERATE, json={**request, "stream": stream})
    assert response.status_code == 200, response.text
    if not stream:
        body = response.json()
        assert body.keys() == VLLM["answer"].keys()
        return body["choices"]
    *chunks, end = events(response.text)
    assert end == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            kind = "chunk_text" if "text" in part else "chunk"
            assert VLLM[kind]["choices"][0].keys() == part.keys()
            whole = choices.setdefault(part["index"], {**part, "token_ids": [], "text": "", "logprobs": None})
            whole["token_ids"] += part["token_ids"]
            whole["text"] += part.get("text", "")
            whole |= {name: part[name] for name in ("finish_reason", "stop_reason")}
            if part["logprobs"] is not None:
                whole["logprobs"] = {
                    "content": (whole["logprobs"] or {"content": []})["content"] + part["logprobs"]["content"]
                }
    if request.get("output_mode") != "text":
        choices = {index: {**whole, "text": None} for index, whole in choices.items()}
    shown = [choices[index] for index in range(len(choices))]
    return [
        {key: part for key, part in whole.items() if key != "text" or part is not None} for whole in shown
    ]


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_has_all_of_vllms_fields_in_their_types(api: ChatApi, path: str) -> None:
    answer = await rendered(api, path, **SAMPLED, **BESIDE)
    assert VLLM["rendered"].keys() - answer.keys() == set()
    own = {"object", "prompt", "count", "max_model_len"}
    assert answer.keys() - VLLM["rendered"].keys() == own, "nothing is left untold, so there are no notes"
    expected = {**SAMPLED, "extra_args": SAMPLED["vllm_xargs"], "max_tokens": 50}
    del expected["vllm_xargs"]
    assert answer["sampling_params"] == expected
    assert answer["sampling_params"].keys() <= set(VLLM["sampling_fields"])
    assert {name: answer[name] for name in BESIDE} == BESIDE
    if path in (CHAT, MESSAGES):
        assert answer["parse_context"].keys() == VLLM["rendered"]["parse_context"].keys()
    assert answer["count"] == len(answer["token_ids"])
    assert answer["max_model_len"] == 4096


@pytest.mark.parametrize("path", BODIES)
async def test_the_ids_are_those_that_the_answer_is_made_from(api: ChatApi, path: str) -> None:
    answer = await rendered(api, path)
    made = await api.post(path, {"model": "scripted", **BODIES[path]})
    assert tuple(answer["token_ids"]) == api.seen.prompt.ids
    assert answer["prompt"] == api.seen.prompt.text
    usage = made["usage"]
    assert answer["count"] == usage.get("prompt_tokens", usage.get("input_tokens"))


@pytest.mark.parametrize(("path", "mode", "stream"), [*product(BODIES, ("tokens", "text"), (False, True))])
async def test_what_was_rendered_can_be_generated(api: ChatApi, path: str, mode: str, stream: bool) -> None:
    """With all that vLLM's classes write beside the ids."""
    request = {**await rendered(api, path), "output_mode": mode}
    [choice] = await generated(api, request, stream=stream)
    assert api.seen.prompt.ids == tuple(request["token_ids"])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    text = await api.post("/detokenize", {"model": "scripted", "tokens": choice["token_ids"]})
    assert text["prompt"] == "eleven eager eels"
    assert choice.get("text") == ("eleven eager eels" if mode == "text" else None)


@pytest.mark.parametrize(("mode", "stream"), [*product(("tokens", "text"), (False, True))])
async def test_choices_with_log_probabilities(api: ChatApi, mode: str, stream: bool) -> None:
    params = {"n": 2, "logprobs": 2, "max_tokens": 3}
    ids = await ids_of(api, "eels")
    request = {"token_ids": ids, "sampling_params": params, "output_mode": mode}
    choices = await generated(api, request, stream=stream)
    assert [choice["index"] for choice in choices] == [0, 1]
    named = mode == "text"
    example = VLLM["answer_text" if named else "answer"]["choices"][0]["logprobs"]["content"][0]
    for choice in choices:
        assert choice["finish_reason"] == "length"
        content = choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"]) == 3
        for token, id_ in zip(content, choice["token_ids"], strict=True):
            assert token.keys() == example.keys()
            assert len(token["top_logprobs"]) >= 2
            assert token["top_logprobs"][0]["logprob"] == token["logprob"]
            if not named:
                assert token["token_id"] == token["top_logprobs"][0]["token_id"] == id_
                assert token["top_logprobs"][0].keys() == example["top_logprobs"][0].keys()


async def test_usage_and_the_ids_of_the_prompt(api: ChatApi) -> None:
    ids = await ids_of(api, "eels are")
    request = {"token_ids": ids, "sampling_params": {}, "return_token_ids": True, "request_id": "mine"}
    body = await api.post(GENERATE, request)
    assert (body["request_id"], body["model"]) == ("generate-tokens-mine", "scripted")
    assert body["prompt_token_ids"] == ids
    [choice] = body["choices"]
    assert body["usage"]["prompt_tokens"] == len(ids)
    assert body["usage"]["completion_tokens"] == len(choice["token_ids"])
    response = await api.http.post(
        GENERATE, json={**request, "stream": True, "stream_options": {"include_usage": True}}
    )
    *chunks, last, _ = events(response.text)
    assert [chunk.get("prompt_token_ids") for chunk in chunks][:2] == [ids, None]
    assert last["choices"] == []
    assert last["usage"] == body["usage"]
    assert VLLM["last"].keys() <= last.keys()


async def test_unset_parameters_are_those_of_vllm(api: ChatApi) -> None:
    """Neither the engine's defaults nor those of the model's makers: ids are sampled as the model gives them."""
    await api.post(GENERATE, {"token_ids": await ids_of(api, "a"), "sampling_params": {"top_p": 0.5}})
    sampling = api.seen.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0.5, -1, 0.0)


async def test_all_that_vllm_writes_itself_is_taken(api: ChatApi) -> None:
    """A request that vLLM has rendered."""
    for kind in ("rendered", "rendered_defaults"):
        given = {
            **VLLM[kind],
            "token_ids": await ids_of(api, "a b"),
            "features": None,
            "model": "scripted",
            "reasoning_ended": True,
        }
        given["sampling_params"] = {**given["sampling_params"], "structured_outputs": None}
        await api.post(GENERATE, given)
    assert api.seen.prompt.text == "a b"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_mode": "derender"}, "output_mode"),
        ({"features": VLLM["rendered"]["features"]}, "features"),
        ({"content_parts": [{"type": "image_url", "url": "http://a.example/b.png"}]}, "content_parts"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids[0]"),
        ({"token_ids": [2**40]}, "token_ids[0]"),
        ({"token_ids": "Hi"}, "token_ids"),
        ({"sampling_params": None}, "sampling_params"),
        *(
            ({"sampling_params": params}, f"sampling_params.{name}")
            for params, name in (
                ({"temperature": -1}, "temperature"),
                ({"temperature": "hot"}, "temperature"),
                ({"n": 1000}, "n"),
                ({"logprobs": 999}, "logprobs"),
                ({"repetition_detection": {"min_count": 2}}, "repetition_detection"),
                ({"thinking_token_budget": 5}, "thinking_token_budget"),
                ({"logprob_token_ids": [1]}, "logprob_token_ids"),
                ({"nothing_known": 1}, "nothing_known"),
                ({"cache_salt": "a"}, "cache_salt"),
                ({"structured_outputs": {"json": "["}}, "structured_outputs.json"),
                (
                    {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
                    "structured_outputs.disable_any_whitespace",
                ),
            )
        ),
        (
            {"sampling_params": {"structured_outputs": {"regex": "a"}}, "reasoning_ended": False},
            "reasoning_ended",
        ),
        ({"sampling_params": {"prompt_logprobs": 1}, "stream": True}, "sampling_params.prompt_logprobs"),
    ],
)
async def test_what_is_not_done_is_refused_by_name(api: ChatApi, fields: dict[str, Any], param: str) -> None:
    request = {"token_ids": [1], "sampling_params": {}, **fields}
    error = (await api.post(GENERATE, request, 400))["error"]
    assert error["param"] == param
    assert error["message"]


async def test_an_engine_that_tells_no_ids(api: ChatApi) -> None:
    engine = ScriptedEngine(SCRIPT)
    engine.card = replace(engine.card, capabilities=replace(CAPABILITIES, token_ids=False))
    async with chatting(engine) as blind:
        error = (await blind.post(GENERATE, {"token_ids": [1], "sampling_params": {}}, 400))["error"]
        assert error["param"] == "output_mode"


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "[a-z]+"}, {"regex": "[a-z]+"}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
@pytest.mark.parametrize("path", BODIES)
async def test_a_demanded_form_is_told(api: ChatApi, path: str, form: Any, told: Any) -> None:
    answer = await rendered(api, path, structured_outputs=form)
    assert answer["sampling_params"]["structured_outputs"] == told


async def test_the_models_own_defaults_are_told(api: ChatApi) -> None:
    async with chatting(SCRIPT, sampling={"temperature": 0.6, "typical_p": 0.9}) as other:
        answer = await rendered(other, CHAT, top_p=0.5)
    assert answer["sampling_params"] == {"temperature": 0.6, "top_p": 0.5, "max_tokens": 50}
    async with chatting(SCRIPT, force_sampling={"temperature": 0.6}) as other:
        answer = await rendered(other, CHAT, temperature=0.9)
    assert answer["sampling_params"]["temperature"] == 0.6


async def test_what_vllm_has_no_field_for_is_noted(api: ChatApi) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    fields = {"typical_p": 0.5, "tools": tools, "tool_choice": "required"}
    answer = await rendered(api, CHAT, **fields)
    assert [note["param"] for note in answer["notes"]] == ["typical_p", "tool_choice"]
    context = answer["parse_context"]
    assert (context["tools"][0]["function"]["name"], context["tool_choice"]) == ("f", "required")


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_ends_the_work(
    api: ChatApi, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []

    async def compose(*_: Any) -> None:
        places.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            places.append("over")

    monkeypatch.setattr(TokenModel, "compose", compose)
    asking = asyncio.create_task(renderings(api, path))
    await until(lambda: places)
    asking.cancel()
    await until(lambda: places == ["begun", "over"])


NOTED: Mapping[str, list[dict[str, Any]]] = {
    CHAT: [{"moderation": {"model": "guard"}}],
    RESPONSES: [{"moderation": {"model": "guard"}}, {"safety_identifier": "a", "reasoning": {"mode": "pro"}}],
    MESSAGES: [{"inference_geo": "us"}],
}


@pytest.mark.parametrize(("path", "fields"), [(path, one) for path, all_ in NOTED.items() for one in all_])
async def test_what_has_no_effect_is_noted_as_in_answers(api: ChatApi, path: str, fields: Any) -> None:
    answer = await rendered(api, path, **fields)
    told = [note["param"] for note in answer.get("notes", [])]
    if "moderation" in fields:
        assert told == ["moderation"]
    else:
        body = {"model": "scripted", **BODIES[path], **fields}
        assert told == [note["param"] for note in (await api.post(path, body)).get("notes", [])] != []


async def test_several_prompts_are_several_requests(api: ChatApi) -> None:
    answers = await renderings(api, TEXT, prompt=["a", "b b"], request_id="r")
    assert [answer["request_id"] for answer in answers] == ["cmpl-r-0", "cmpl-r-1"]
    assert [answer["prompt"] for answer in answers] == ["a", "b b"]
    given = [answer["token_ids"] for answer in answers]
    assert [answer["token_ids"] for answer in await renderings(api, TEXT, prompt=given)] == given


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_beam_search_is_refused_by_name(api: ChatApi, path: str) -> None:
    body = {"model": "scripted", **BODIES[path], "use_beam_search": True, "n": 2}
    error = (await api.post(f"{path}/render", body, 400))["error"]
    assert error["param"] == "use_beam_search"


async def test_the_conversation_that_a_response_continues_is_rendered(api: ChatApi) -> None:
    first = await api.post(RESPONSES, {"model": "scripted", "input": "eels"})
    body = {"model": "scripted", "input": "More.", "previous_response_id": first["id"]}
    answer = await api.post(f"{RESPONSES}/render", body)
    assert "eleven eager eels" in answer["prompt"]
    listed = await api.get(RESPONSES)
    await api.post(f"{RESPONSES}/render", body)
    assert await api.get(RESPONSES) == listed, "nothing is stored"
    error = await api.post(f"{RESPONSES}/render", {**body, "previous_response_id": "resp_no"}, 404)
    assert error["error"]["param"] == "previous_response_id"


async def test_media_are_where_their_placeholders_are(api: ChatApi) -> None:
    image = {"type": "image_url", "image_url": {"url": data_url(png())}}
    said = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}, image],
        }
    ]
    answer = await api.post(f"{CHAT}/render", {"model": "scripted", "messages": said})
    features = answer["features"]
    assert features.keys() == VLLM["rendered"]["features"].keys()
    first, second = features["mm_placeholders"]["image"]
    hashes = features["mm_hashes"]["image"]
    assert len(hashes[0]) == 64
    assert hashes[0] == hashes[1]
    ids = answer["token_ids"]

    def span(place: dict[str, int]) -> list[int]:
        return ids[place["offset"] : place["offset"] + place["length"]]

    assert first["offset"] + first["length"] <= second["offset"]
    assert span(first) == span(second)
    assert span(first)
    assert [note["param"] for note in answer["notes"]] == ["features"]
    text = await api.post("/detokenize", {"model": "scripted", "tokens": ids[: first["offset"]]})
    assert text["prompt"].endswith("user\na\n")


@pytest.mark.parametrize("path", [*(f"{path}/render" for path in BODIES), GENERATE])
async def test_each_needs_a_key(path: str) -> None:
    async with chatting(SCRIPT, api_key=("secret",)) as api:
        for headers, status in (({}, 401), ({"authorization": "Bearer secret"}, 400)):
            response = await api.http.post(path, json={"model": "scripted"}, headers=headers)
            assert response.status_code == status
