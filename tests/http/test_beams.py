"""Prompts that are scored, and beam searches, over a real socket: a vLLM that is played has both."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon.engines.vllm import Options
from tests.engines import fake_vllm
from tests.http.chat_api import CHAT, ChatApi, chat, chatting, function

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEARCHED = {"use_beam_search": True, "n": 3, "max_tokens": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[ChatApi]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {**os.environ})
        fake_vllm.install(patch)
        async with chatting(
            Options("org/model", context=512, parallel=3).build(), model_name=("scripted",)
        ) as api:
            yield api


async def test_a_prompt_is_told_with_its_log_probabilities(api: ChatApi) -> None:
    body = await api.ask("aé", prompt_logprobs=1, max_tokens=2, n=2)

    assert body["usage"]["prompt_tokens"] == 3
    assert body["prompt_logprobs"][0] is None
    [scored] = [each for each in body["prompt_logprobs"][1].values() if each["rank"] != 1]
    assert scored == {"logprob": 0.0, "rank": 7, "decoded_token": "\ufffd"}  # the rank that the fake tells
    assert [len(each) for each in body["prompt_logprobs"][1:]] == [2, 2]


async def test_each_of_several_prompts_is_scored(api: ChatApi) -> None:
    body = await api.complete(["ab", "abc"], prompt_logprobs=0, max_tokens=1)

    assert [len(choice["prompt_logprobs"]) for choice in body["choices"]] == [2, 3]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_has_log_probabilities(api: ChatApi, stream: bool) -> None:
    fields = {"echo": True, "logprobs": 1, "max_tokens": 2}
    if stream:
        chunks = [chunk["choices"][0] for chunk in await api.stream_of("ab", **fields) if chunk["choices"]]
        logprobs = [each["logprobs"] for each in chunks if each["logprobs"]]
        told = {name: [value for each in logprobs for value in each[name]] for name in logprobs[0]}
    else:
        [choice] = (await api.complete("ab", **fields))["choices"]
        assert choice["text"] == "abcd"
        told = choice["logprobs"]
    assert told["tokens"] == ["a", "b", "c", "d"]
    assert told["token_logprobs"] == [None, 0.0, -0.5, -0.5]
    assert told["text_offset"] == [0, 1, 2, 3]


async def test_beams_are_choices_the_best_first(api: ChatApi) -> None:
    body = await api.ask("a", **SEARCHED)

    assert [choice["message"]["content"] for choice in body["choices"]] == ["bcd", "bca", "bab"]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["completion_tokens"] == 9


async def test_beams_of_several_prompts_and_of_a_stream_are_the_same(api: ChatApi) -> None:
    body = await api.complete(["a", "q"], **SEARCHED, logprobs=1)
    assert [choice["text"] for choice in body["choices"]] == ["bcd", "bca", "bab", "rst", "rsa", "rab"]
    assert body["choices"][1]["logprobs"]["token_logprobs"] == [-0.5, -0.5, -1.5]

    texts = dict.fromkeys(range(6), "")
    for chunk in await api.stream_of(["a", "q"], **SEARCHED):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert [*texts.values()] == [choice["text"] for choice in body["choices"]]


async def test_a_stop_string_ends_a_beam(api: ChatApi) -> None:
    body = await api.ask("a", **SEARCHED, stop="c")

    assert [choice["message"]["content"] for choice in body["choices"]] == ["b", "b", "bab"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "stop", "length"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 11}, "n"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"97": 5}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "use_beam_search"),
        ({"tools": [function("f")], "tool_choice": "required"}, "use_beam_search"),
        ({"thinking_token_budget": 3}, "use_beam_search"),
    ],
)
async def test_what_a_beam_search_cannot_do_is_refused(api: ChatApi, fields: dict, param: str) -> None:
    error = await api.refused("a", **{**SEARCHED, **fields})

    assert error["param"] == param


async def test_the_best_of_more_than_there_are_beams_is_refused(api: ChatApi) -> None:
    assert (await api.not_completed("a", **SEARCHED, best_of=4))["param"] == "use_beam_search"


async def test_what_changes_nothing_may_stand_beside_a_beam_search(api: ChatApi) -> None:
    body = await api.post(CHAT, chat("a", **SEARCHED, presence_penalty=0, min_tokens=0, temperature=0.3))

    assert len(body["choices"]) == 3


async def test_a_search_that_vllm_gives_up_is_an_error(api: ChatApi) -> None:
    core = fake_vllm.AsyncLLM.last.engine_core
    core.script = [fake_vllm.EngineCoreOutput(new_token_ids=[], finish_reason="error")]

    await api.post(CHAT, chat("a", **SEARCHED), 500)
