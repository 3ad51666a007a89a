"""Completions, tokens, rendered prompts and batches over a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.fields import HINTS, REFUSED
from antiphon.engines.script import pieces_of, token_id
from antiphon.engines.scripted import ScriptedEngine
from tests.http.chat_api import CHAT, ChatApi, assistant, chat, chatting, completion, function, user

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT: list[dict[str, Any]] = [
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "markup", "output": "<think>\nHm.\n</think>\n<tool_call>"},
    {"when": "emoji", "output": " 👋🏽 日本語", "split": "chars"},
    {"when": "long", "output": " word", "tokens": 100},
    {"output": " upon a time."},
]
ONCE, TIME = "Once", " upon a time."
PIECES = [" upon", " a", " time", "."]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[ChatApi]:
    async with chatting(SCRIPT) as api:
        yield api


def ids(text: str) -> list[int]:
    return [token_id(piece) for piece in pieces_of(text)]


def collected(chunks: list[Any]) -> list[dict[str, Any]]:
    """The sum of the chunks of a stream. A choice ends once, and nothing follows its end."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "finish_reason": None, "tokens": []})
            assert choice["finish_reason"] is None
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"]
            if part["logprobs"]:
                choice["tokens"] += zip(*part["logprobs"].values(), strict=True)
    return [choices[index] for index in sorted(choices)]


async def both(api: ChatApi, prompt: Any, **fields: Any) -> list[Any]:
    """The choices of the full answer. Those of the stream are the same."""
    full = (await api.complete(prompt, **fields))["choices"]
    for choice, streamed in zip(full, collected(await api.stream_of(prompt, **fields)), strict=True):
        assert (choice["text"], choice["finish_reason"]) == (streamed["text"], streamed["finish_reason"])
        if choice["logprobs"]:
            assert streamed["tokens"] == list(zip(*choice["logprobs"].values(), strict=True))
    return full


async def test_a_completion(api: ChatApi) -> None:
    body = await api.complete(ONCE)

    assert body["id"].startswith("cmpl-")
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (TIME, "stop", None)
    assert body["usage"]["prompt_tokens"] == 1
    assert body["usage"]["completion_tokens"] == 4


async def test_nothing_is_read_into_a_completion(api: ChatApi) -> None:
    [choice] = await both(api, "markup", max_tokens=50)

    assert choice["text"] == "<think>\nHm.\n</think>\n<tool_call>"


async def test_prompts_in_all_their_forms(api: ChatApi) -> None:
    # The engine learns these ids.
    await api.post("/tokenize", {"model": "scripted", "prompt": "Once there was"})
    for prompt, count in [
        (ONCE, 1),
        ([ONCE, "Twice"], 2),
        (ids("Once there was"), 1),
        ([ids("Once there"), ids(" was")], 2),
        ([""], 1),
    ]:
        choices = await both(api, prompt)
        assert [choice["index"] for choice in choices] == list(range(count))
        assert {choice["text"] for choice in choices} == {TIME}


async def test_the_prompts_of_a_batch_are_all_counted(api: ChatApi) -> None:
    body = await api.complete(["one two", "three"], n=2)

    assert len(body["choices"]) == 4
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 16


async def test_the_default_limit_is_openais(api: ChatApi) -> None:
    [choice] = await both(api, "long")
    assert (len(choice["text"].split()), choice["finish_reason"]) == (16, "length")
    [choice] = await both(api, "long", max_tokens=20)
    assert len(choice["text"].split()) == 20


async def test_echo(api: ChatApi) -> None:
    assert [c["text"] for c in await both(api, [ONCE, "Twice"], echo=True)] == [ONCE + TIME, "Twice" + TIME]
    [choice] = await both(api, ids(ONCE), echo=True)
    assert choice["text"] == ONCE + TIME


async def test_log_probabilities(api: ChatApi) -> None:
    [choice] = await both(api, ONCE, logprobs=2)
    told = choice["logprobs"]

    assert told["tokens"] == PIECES
    assert told["text_offset"] == [0, 5, 7, 12]
    assert all(-2 <= logprob <= -1 for logprob in told["token_logprobs"])
    assert all(
        len(top) == 2 and token in top for token, top in zip(PIECES, told["top_logprobs"], strict=True)
    )

    [plain] = await both(api, "emoji", logprobs=0)
    assert "".join(plain["logprobs"]["tokens"]) == plain["text"] == " 👋🏽 日本語"
    assert plain["logprobs"]["top_logprobs"] == [None] * 7
    [named] = await both(api, ONCE, logprobs=1, return_tokens_as_token_ids=True)
    assert named["logprobs"]["tokens"] == [f"token_id:{token_id(piece)}" for piece in PIECES]


async def test_log_probabilities_of_an_echoed_prompt_need_an_engine_that_has_them(api: ChatApi) -> None:
    assert (await api.not_completed(ONCE, echo=True, logprobs=1))["param"] == "prompt_logprobs"


async def test_all_ids_are_told(api: ChatApi) -> None:
    [choice] = (await api.complete(ONCE, return_token_ids=True))["choices"]

    assert choice["token_ids"] == [token_id(piece) for piece in PIECES]
    assert choice["prompt_token_ids"] == ids(ONCE)
    first, *others = (chunk["choices"][0] for chunk in await api.stream_of(ONCE, return_token_ids=True))
    assert first["prompt_token_ids"] == ids(ONCE)
    assert [token for part in others for token in part["token_ids"]] == choice["token_ids"]


async def test_the_best_of_several(api: ChatApi) -> None:
    body = await api.complete(ONCE, best_of=3, n=2)

    assert len(body["choices"]) == 2
    assert body["usage"]["completion_tokens"] == 12


async def test_usage_of_a_stream(api: ChatApi) -> None:
    usage = (await api.complete([ONCE, "Twice"], n=2))["usage"]
    *others, last = await api.stream_of([ONCE, "Twice"], n=2, stream_options={"include_usage": True})

    assert last["usage"] == usage
    assert all(chunk["usage"] is None for chunk in others)


async def test_formats_hold_for_completions_too(api: ChatApi) -> None:
    for fields, param in [
        ({"guided_choice": ["yes", "no"]}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ]:
        [choice] = (await api.complete(ONCE, **fields))["choices"]
        assert choice["unmet"][0].startswith(f"{param}: ")
    [choice] = (await api.complete(ONCE, structured_outputs={"regex": " [a-z .]+"}))["choices"]
    assert "unmet" not in choice


async def test_one_prompt_that_fails_does_not_lose_the_others(api: ChatApi) -> None:
    failed, whole = await both(api, ["breaks off", ONCE])

    assert (failed["finish_reason"], failed["text"]) == ("error", "one two three")
    assert failed["error"]["code"] == "engine_error"
    assert (whole["finish_reason"], whole["text"]) == ("stop", TIME)


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        (ONCE, {"best_of": 1, "n": 2}, "best_of"),
        (ONCE, {"best_of": 2, "stream": True}, "best_of"),
        (ONCE, {"n": 129}, "n"),
        ([ONCE] * 65, {"n": 2}, "n"),
        ([], {}, "prompt"),
        ([[]], {}, "prompt[0]"),
        ([ONCE, [1]], {}, "prompt"),
        ([1, ONCE], {}, "prompt"),
        (None, {}, "prompt"),
        ([-1], {}, "prompt[0]"),
        ([123456789], {}, "prompt"),
        (ONCE, {"logprobs": 21}, "logprobs"),
        (ONCE, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (ONCE, {"stream_options": {"include_usage": True}}, "stream_options"),
        ("word " * 40_000, {}, "prompt"),
        (ONCE, {"bad_words": ["x"]}, "bad_words"),
    ],
)
async def test_bad_input_is_refused_by_name(
    api: ChatApi, prompt: Any, fields: dict[str, Any], param: str
) -> None:
    assert (await api.not_completed(prompt, **fields))["param"] == param


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in REFUSED
        if name not in {*CompletionRequest.__struct_fields__, *HINTS} and "." not in name
    ],
)
async def test_what_antiphon_cannot_do_is_refused_by_name(api: ChatApi, name: str) -> None:
    assert (await api.not_completed(ONCE, **{name: "x"}))["param"] == name


async def test_prompts_may_be_cut(api: ChatApi) -> None:
    [choice] = (await api.complete("one two three", truncate_prompt_tokens=2, echo=True))["choices"]
    assert choice["text"] == " two three" + TIME


# Tokens


async def test_a_text_and_its_tokens(api: ChatApi) -> None:
    text = "Grüße 👋🏽 an <|im_end|>"
    told = await api.post("/tokenize", {"model": "scripted", "prompt": text, "return_token_strs": True})

    assert told["tokens"] == ids(text)
    assert told["count"] == len(told["tokens"])
    assert "".join(told["token_strs"]) == text
    assert told["max_model_len"] == 32768
    back = await api.post("/detokenize", {"model": "scripted", "tokens": told["tokens"]})
    assert back == {"prompt": text, "content": text}


async def test_a_conversation_and_its_tokens(api: ChatApi) -> None:
    said = chat("Hi", tools=[function("f")])
    rendered = await api.post(f"{CHAT}/render", said)
    tokens = await api.post("/tokenize", said)
    body = await api.post(CHAT, said)

    assert rendered["prompt"] == api.seen.prompt.text
    assert tuple(rendered["token_ids"]) == tuple(tokens["tokens"]) == api.seen.prompt.ids
    assert rendered["count"] == tokens["count"] == body["usage"]["prompt_tokens"]
    assert tokens["token_strs"] is None


async def test_prompts_are_counted_and_shown_however_long_they_are() -> None:
    async with chatting(ScriptedEngine(SCRIPT, context=100)) as api:
        long = chat("word " * 200)
        rendered = await api.post(f"{CHAT}/render", long)
        tokens = await api.post("/tokenize", long)
        assert rendered["count"] == tokens["count"] > tokens["max_model_len"] == 100
        assert (await api.post("/tokenize", {"model": "scripted", "prompt": "word " * 200}))["count"] > 100
        assert (await api.refused("word " * 200))["code"] == "context_length_exceeded"


async def test_a_prompt_as_an_answer_would_get_it(api: ChatApi) -> None:
    said = [user("Hi"), assistant("Once")]
    for fields, end in [
        ({}, "<|im_start|>assistant\n"),
        ({"continue_final_message": True}, "assistant\nOnce"),
        ({"add_generation_prompt": False}, "Once<|im_end|>\n"),
        ({"response_prefix": "So"}, "<|im_start|>assistant\nSo"),
    ]:
        assert (await api.post(f"{CHAT}/render", chat(said, **fields)))["prompt"].endswith(end)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "x", "model": 3}, "model"),
        ("/tokenize", {"model": "scripted"}, "prompt"),
        ("/tokenize", {"model": "scripted", "messages": []}, "messages"),
        ("/tokenize", chat("Hi", chat_template="x"), "chat_template"),
        ("/detokenize", {"model": "scripted", "tokens": [987654321]}, "tokens"),
        ("/detokenize", {"model": "scripted", "tokens": ["x"]}, "tokens[0]"),
        (f"{CHAT}/render", {"model": "scripted"}, "messages"),
    ],
)
async def test_bad_requests_for_tokens(api: ChatApi, path: str, body: Any, param: str) -> None:
    assert (await api.post(path, body, 400))["error"]["param"] == param


# Batches


async def test_a_batch_of_conversations(api: ChatApi) -> None:
    body = await api.post(
        f"{CHAT}/batch", {"model": "scripted", "messages": [[user("Hi")], [user("markup")]]}
    )

    first, second = body["choices"]
    assert (first["index"], first["message"]["content"]) == (0, TIME)
    assert (second["index"], second["message"]["reasoning"]) == (1, "Hm.")
    single = await api.ask("Hi")
    assert body["usage"]["prompt_tokens"] > single["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [[user("Hi")], []]}, "messages[1]"),
        ({"messages": [[user("Hi")], [{"role": "wizard"}]]}, "messages[1][0].content"),
    ],
)
async def test_bad_batches(api: ChatApi, fields: dict[str, Any], param: str) -> None:
    body = {"model": "scripted", "messages": [[user("Hi")]], **fields}
    assert (await api.post(f"{CHAT}/batch", body, 400))["error"]["param"] == param


async def test_completions_go_by_the_id_of_their_request(api: ChatApi) -> None:
    response = await api.http.post("/v1/completions", json=completion(ONCE), headers={"x-request-id": "r-1"})
    assert response.headers["x-request-id"] == "r-1"
    assert response.json()["id"] == "cmpl-r-1"
