"""Parameters that are about tokens, in every API that has them, streamed and whole."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from tests.http.chat_api import CHAT, COMPLETIONS, ChatApi, chatting

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

SCRIPT: list[dict[str, Any]] = [
    {"when": "eels", "output": "<think>see</think>eleven eager eels", "split": 1},
    {"when": "page", "output": "<|ref|>cat<|/ref|>"},
    {"output": "Fine."},
]

BODIES: dict[str, Any] = {
    CHAT: {"messages": [{"role": "user", "content": "eels"}], "max_tokens": 99},
    COMPLETIONS: {"prompt": "eels", "max_tokens": 99},
    RESPONSES: {"input": "eels", "store": False},
    MESSAGES: {"messages": [{"role": "user", "content": "eels"}], "max_tokens": 99},
}
"""A request of each API that generates text."""


@pytest.fixture
async def api() -> AsyncIterator[ChatApi]:
    async with chatting(SCRIPT) as api:
        yield api


def written(body: Any) -> int:
    """The number of tokens of an answer."""
    usage = body["usage"]
    count: int = usage.get("completion_tokens", usage.get("output_tokens"))
    return count


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("least", [0, 1, 12, 24, 30, 35])
async def test_no_stop_string_ends_an_answer_before_it_has_its_least_tokens(
    api: ChatApi, path: str, least: int
) -> None:
    stop = {"stop_sequences": ["e"]} if path == MESSAGES else {"stop": "e"}
    body = await api.post(path, {"model": "scripted", **BODIES[path], **stop, "min_tokens": least})

    text = SCRIPT[0]["output"]
    visible = 0 if path == COMPLETIONS else text.index("</think>") + len("</think>")
    ends = text.find("e", max(least, visible)) + 1 or len(text)  # every character is a token
    assert written(body) == ends


async def test_a_stream_ends_at_the_same_stop_string(api: ChatApi) -> None:
    choice = await api.choice("eels", stop=["e"], min_tokens=24)
    assert (choice["message"]["content"], choice["stop_reason"]) == ("eleven ", "e")


async def test_special_tokens_are_shown_if_the_client_wants(api: ChatApi) -> None:
    choice = await api.choice("page", skip_special_tokens=False)
    assert choice["message"]["content"] == SCRIPT[1]["output"]


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"return_token_ids": True}, "return_token_ids"),
        (CHAT, {"logprobs": True, "return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        (COMPLETIONS, {"return_token_ids": True}, "return_token_ids"),
        (RESPONSES, {"enable_response_messages": True}, "enable_response_messages"),
        (CHAT, {"skip_special_tokens": False}, "skip_special_tokens"),
        (CHAT, {"logprobs": True, "top_logprobs": 31}, "top_logprobs"),
        (COMPLETIONS, {"logprobs": 31}, "logprobs"),
        (RESPONSES, {"top_logprobs": 31, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ],
)
async def test_what_the_engine_does_not_tell_is_refused_by_name(
    path: str, more: dict[str, Any], param: str
) -> None:
    sampling = CAPABILITIES.sampling - {"skip_special_tokens"}
    able = replace(CAPABILITIES, token_ids=False, sampling=sampling, alternatives=30)
    async with chatting(ScriptedEngine(SCRIPT, capabilities=able)) as api:
        for stream in (False, True):
            asked = {"model": "scripted", **BODIES[path], **more, "stream": stream}
            assert (await api.post(path, asked, 400))["error"]["param"] == param
        await api.post(path, {"model": "scripted", **BODIES[path], "skip_special_tokens": True})


async def test_more_alternatives_where_the_engine_gives_them() -> None:
    async with chatting(ScriptedEngine(SCRIPT, capabilities=replace(CAPABILITIES, alternatives=30))) as api:
        choice = await api.choice("Hi", logprobs=True, top_logprobs=25)
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [25, 25]
