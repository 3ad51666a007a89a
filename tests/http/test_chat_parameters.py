"""Parameters of chat requests over a real socket: each is honoured, a hint, or refused by its name."""

import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.fields import HINTS, REFUSED
from antiphon.core.chunks import Candidate, Chunk, Token
from antiphon.core.errors import EngineError
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import token_id
from antiphon.engines.scripted import ScriptedEngine
from antiphon.render.sandbox import Template
from tests.http.chat_api import CHAT, ChatApi, assistant, chat, chatting, function, user
from tests.pushing import Edited

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WEATHER = f"<think>\nHm, weather.\n</think>\n\nLet me look.\n{CALL}"
BROODING = "<think>" + " hm" * 50
SCRIPT: list[dict[str, Any]] = [
    {"when": "</think>", "output": "It is so."},
    {"when": "brood", "output": f"{BROODING}\n</think>\n\nNever said."},
    {"when": "weather?", "output": WEATHER},
    {"when": "emoji", "output": "Grüße 👋🏽 an 日本語.", "split": "chars"},
    {"when": "finish it", "output": '"Rome"}}\n</tool_call>'},
    {"when": "go on", "output": " and they lived happily."},
    {"output": "Hello there, friend!"},
]
WEATHER_TOOL = function("get_weather")
HELLO = "Hello there, friend!"
PIECES = ["Hello", " there", ",", " friend", "!"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[ChatApi]:
    async with chatting(SCRIPT) as api:
        yield api


# What is drawn


@pytest.mark.parametrize(
    ("field", "value", "name", "drawn"),
    [
        ("temperature", 0.5, "temperature", 0.5),
        ("top_p", 0.9, "top_p", 0.9),
        ("top_k", 40, "top_k", 40),
        ("top_k", 0, "top_k", -1),
        ("min_p", 0.1, "min_p", 0.1),
        ("presence_penalty", -1.5, "presence_penalty", -1.5),
        ("frequency_penalty", 1, "frequency_penalty", 1),
        ("repetition_penalty", 1.1, "repetition_penalty", 1.1),
        ("logit_bias", {"17": -100}, "logit_bias", {17: -100}),
        ("seed", -5, "seed", -5),
        ("max_tokens", 3, "max_tokens", 3),
        ("max_completion_tokens", 3, "max_tokens", 3),
        ("stop_token_ids", [7, 8], "stop_token_ids", (7, 8)),
        ("priority", -3, "priority", -3),
        ("cache_salt", "mine", "cache_salt", "mine"),
    ],
)
async def test_the_engine_gets_what_the_client_asks_for(
    api: ChatApi, field: str, value: Any, name: str, drawn: Any
) -> None:
    await api.ask("Hi", **{field: value})

    assert getattr(api.seen.sampling, name) == drawn


UNABLE = {
    "bad_words": ["damn"],
    "length_penalty": 0.5,
    "prompt_logprobs": 1,
    "use_beam_search": True,
}
"""What a scripted engine does not honour."""


@pytest.mark.parametrize("name", UNABLE)
async def test_what_the_engine_cannot_do_is_refused_by_name(api: ChatApi, name: str) -> None:
    value = UNABLE[name]
    body = await api.post(CHAT, chat("Hi", **{name: value}, n=2), 400)

    assert body["error"]["param"] == name
    assert f"'{name}'" in body["error"]["message"]


async def test_what_changes_nothing_is_no_reason_to_refuse(api: ChatApi) -> None:
    await api.ask(
        "Hi", length_penalty=1, bad_words=[], use_beam_search=False, prompt_logprobs=None, min_tokens=0
    )


@pytest.mark.parametrize(
    "name", [name for name in REFUSED if name not in ChatRequest.__struct_fields__ and "." not in name]
)
async def test_what_antiphon_cannot_do_is_refused_by_name(api: ChatApi, name: str) -> None:
    error = await api.refused("Hi", **{name: {"a": 1}})

    assert (error["param"], error["type"]) == (name, "invalid_request_error")
    assert REFUSED[name] in error["message"]


async def test_hints_are_taken(api: ChatApi) -> None:
    body = await api.ask(
        "Hi",
        **dict.fromkeys(HINTS.keys() - {*ChatRequest.__struct_fields__}, "anything"),
        service_tier="flex",
    )

    assert body["choices"][0]["message"]["content"] == HELLO
    assert body["service_tier"] == "default"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "right"}, "truncation_side"),
        ({"continue_final_message": True}, "messages[0]"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ({"request_id": ""}, "request_id"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"stop": ["a"] * 17}, "stop"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(api: ChatApi, fields: dict[str, Any], param: str) -> None:
    assert (await api.refused("Hi", **fields))["param"] == param


# Where an answer ends


async def test_stop_strings_may_stay(api: ChatApi) -> None:
    cut = await api.choice("Hi", stop=", f")
    shown = await api.choice("Hi", stop=", f", include_stop_str_in_output=True)

    assert (cut["message"]["content"], cut["stop_reason"]) == ("Hello there", ", f")
    assert (shown["message"]["content"], shown["finish_reason"]) == ("Hello there, f", "stop")


async def test_stop_tokens_end_an_answer(api: ChatApi) -> None:
    choice = await api.choice("Hi", stop_token_ids=[token_id(",")])

    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello there", "stop")
    assert choice["stop_reason"] == token_id(",")


async def test_an_answer_may_have_to_be_longer(api: ChatApi) -> None:
    assert (await api.choice("Hi", min_tokens=7))["message"]["content"] == HELLO + "Hello there"
    endless = await api.choice("Hi", ignore_eos=True, max_tokens=11)
    assert (endless["message"]["content"], endless["finish_reason"]) == (HELLO * 2 + "Hello", "length")


# Log probabilities and tokens


async def test_log_probabilities_are_those_of_the_text(api: ChatApi) -> None:
    for said, tools in (("emoji", []), ("weather?", [WEATHER_TOOL])):
        more = {"tools": tools} if tools else {}
        choice = await api.choice(said, logprobs=True, top_logprobs=3, **more)
        entries = choice["logprobs"]["content"]

        text = choice["message"]["content"]
        assert "".join(entry["token"] for entry in entries).strip() == text
        assert bytes(byte for entry in entries for byte in entry["bytes"]).strip() == text.encode()
        assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
        assert all(-2 <= entry["logprob"] <= -1 for entry in entries)
        assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries)


async def test_log_probabilities_without_alternatives(api: ChatApi) -> None:
    choice = await api.choice("Hi", logprobs=True)

    assert [entry["token"] for entry in choice["logprobs"]["content"]] == PIECES
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


class UnsureEngine(ScriptedEngine):
    """Knows that some things never happen, and of others nothing."""

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        def edit(chunk: Chunk) -> Chunk:
            return replace(chunk, tokens=tuple(map(self._unsure, chunk.tokens)))

        return super().generate(request, Edited(receiver, edit))

    @staticmethod
    def _unsure(token: Token) -> Token:
        return replace(token, logprob=None, top=(Candidate(1, "never", float("-inf")),))


async def test_a_probability_that_is_no_number_is_very_small() -> None:
    async with chatting(UnsureEngine(SCRIPT)) as api:
        choice = await api.choice("Hi", logprobs=True, top_logprobs=1)

        for entry in choice["logprobs"]["content"]:
            assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


async def test_tokens_may_be_named_by_id(api: ChatApi) -> None:
    choice = await api.choice("Hi", logprobs=True, return_tokens_as_token_ids=True)

    assert [e["token"] for e in choice["logprobs"]["content"]] == [f"token_id:{token_id(p)}" for p in PIECES]


async def test_all_ids_are_told(api: ChatApi) -> None:
    choice = await api.choice("Hi", return_token_ids=True, return_prompt_text=True)
    body = await api.ask("Hi", return_token_ids=True, return_prompt_text=True)
    first, *others = await api.stream("Hi", return_token_ids=True, return_prompt_text=True)

    assert choice["token_ids"] == [token_id(piece) for piece in PIECES]
    for told in (body, first):
        assert tuple(told["prompt_token_ids"]) == api.seen.prompt.ids
        assert told["prompt_text"] == api.seen.prompt.text
    assert not any("prompt_token_ids" in chunk for chunk in others)


# Several answers


async def test_choices_have_seeds_of_their_own(api: ChatApi) -> None:
    await api.ask("Hi", n=3, seed=7)

    assert sorted(generation.sampling.seed for generation in [*api.server.engine.seen][-3:]) == [7, 8, 9]


class FaultyEngine(ScriptedEngine):
    """Fails in the middle of every third answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked = 0

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.asked += 1
        return super().generate(request, Breaking(receiver) if self.asked % 3 == 2 else receiver)


class Breaking:
    """A receiver that gets a failure after two chunks."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._pushed = 0
        self.fail = receiver.fail

    def push(self, chunks: list[Chunk]) -> None:
        self._pushed += 1
        if self._pushed <= 2:
            self._receiver.push(chunks)
        if self._pushed == 2:
            self.fail(EngineError("The engine broke."))


async def test_a_choice_that_fails_does_not_lose_the_others() -> None:
    async with chatting(FaultyEngine(SCRIPT)) as api:
        choices = await api.choices("Hi", n=3)
        first, failed, last = choices

        assert failed["finish_reason"] == "error"
        assert failed["message"]["content"] == "Hello there"
        assert failed["error"] == {
            "message": "The engine broke.", "type": "server_error", "param": None, "code": "engine_error",
        }  # fmt: skip
        for whole in (first, last):
            assert (whole["message"]["content"], whole["finish_reason"]) == (HELLO, "stop")
            assert "error" not in whole
        assert (await api.ask("Hi", n=3))["usage"]["completion_tokens"] == 12


# Ids


async def test_an_answer_goes_by_the_id_of_its_request(api: ChatApi) -> None:
    for more, headers, id_ in [
        ({}, {"X-Request-Id": "abc-1"}, "chatcmpl-abc-1"),
        ({"request_id": "r-2"}, {}, "chatcmpl-r-2"),
        ({"request_id": "r-3"}, {"X-Request-Id": "abc-3"}, "chatcmpl-r-3"),
    ]:
        for stream in (False, True):
            response = await api.http.post(CHAT, json=chat("Hi", stream=stream, **more), headers=headers)
            assert f'"id":"{id_}"' in response.text

    first, second = [await api.http.post(CHAT, json=chat("Hi")) for _ in range(2)]
    assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize("given", ["a" * 129, "a\tb"])
async def test_a_bad_id_is_refused_or_replaced(api: ChatApi, given: str) -> None:
    assert (await api.refused("Hi", request_id=given))["param"] == "request_id"
    body = await api.post(CHAT, chat("Hi"), **{"x-request-id": given})
    assert given not in body["id"]  # a proxy may have set it


# Prompts


STORY = [user("Tell a story, and go on"), assistant("Once there was a fox")]


async def test_the_last_message_is_gone_on_with(api: ChatApi) -> None:
    choice = await api.choice(STORY, continue_final_message=True)
    assert choice["message"]["content"] == " and they lived happily."
    assert api.seen.prompt.text.endswith("<|im_start|>assistant\nOnce there was a fox")

    echoed = await api.choice(STORY, continue_final_message=True, echo=True)
    assert echoed["message"]["content"] == "Once there was a fox and they lived happily."


async def test_an_answer_begins_as_the_client_says(api: ChatApi) -> None:
    choice = await api.choice("go on", response_prefix="Once they married")
    assert choice["message"]["content"] == " and they lived happily."
    assert api.seen.prompt.text.endswith("<|im_start|>assistant\nOnce they married")

    echoed = await api.choice("go on", response_prefix="Once they married", echo=True)
    assert echoed["message"]["content"] == "Once they married and they lived happily."


async def test_a_call_that_the_client_begins_is_a_call(api: ChatApi) -> None:
    begun = 'Let me look.\n<tool_call>\n{"name": "f", "arguments": {"city": '
    choice = await api.choice("finish it", response_prefix=begun, tools=[function("f")])
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"city": "Rome"}'}
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")

    plain = await api.choice("finish it", response_prefix=begun)
    assert plain["message"]["content"] == '"Rome"}}\n</tool_call>'


async def test_a_transcript_has_no_beginning_of_an_answer(api: ChatApi) -> None:
    with capture_logs() as logs:
        body = chat("Hi", add_generation_prompt=False, response_prefix="Once")
        whole, stream = [
            await api.http.post(CHAT, json=body | {"stream": stream}) for stream in (False, True)
        ]
    assert "Once" not in api.seen.prompt.text
    assert whole.json()["choices"][0]["message"]["role"] == "user"
    assert '"delta":{"role":"user"' in stream.text
    assert any("response_prefix" in what for log in logs for what in log.get("what", ()))
    assert api.seen.prompt.text.endswith("Hi<|im_end|>\n")

    error = await api.refused(STORY, continue_final_message=True, add_generation_prompt=True)
    assert error["param"] == "continue_final_message"


async def test_templates_of_clients_are_refused(api: ChatApi) -> None:
    assert (await api.refused("Hi", chat_template="{{ messages }}"))["param"] == "chat_template"


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}{{ shade }}{{ verbosity }}{{ enable_thinking }}"
)


async def test_templates_of_trusted_clients_are_used() -> None:
    async with chatting(SCRIPT, trust_chat_templates=True) as api:
        await api.ask(
            "Hi",
            chat_template=TEMPLATE,
            documents=[{"title": "one"}, {"title": "two"}],
            chat_template_kwargs={"shade": "blue"},
            verbosity="low",
            reasoning_effort="none",
        )
        assert api.seen.prompt.text == "<user>Hi[one][two]bluelowFalse"

        for broken in ("{% for %}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}"):
            assert (await api.refused("Hi", chat_template=broken))["param"] in ("chat_template", "messages")


async def test_templates_of_clients_are_rendered_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even for a short conversation: each may take a second."""
    threads = set()
    render = Template.render

    def noted(self: Template, variables: Mapping[str, Any]) -> str:
        threads.add(threading.get_ident())
        return render(self, variables)

    async with chatting(SCRIPT, trust_chat_templates=True) as api:
        monkeypatch.setattr(Template, "render", noted)
        await api.ask("Hi", chat_template=TEMPLATE)
    assert threads
    assert threading.get_ident() not in threads


async def test_the_template_is_told_whether_to_think(api: ChatApi) -> None:
    await api.ask("Hi", reasoning_effort="high")
    assert api.seen.prompt.text.endswith("<think>\n")
    await api.ask("Hi", reasoning_effort="none")
    assert not api.seen.prompt.text.endswith("<think>\n")
    await api.ask("Hi", reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert api.seen.prompt.text.endswith("<think>\n")


async def test_a_long_prompt_is_cut_at_its_beginning(api: ChatApi) -> None:
    await api.ask("one two three four five")
    whole = api.seen.prompt.ids
    await api.ask("one two three four five", truncate_prompt_tokens=6)

    assert api.seen.prompt.ids == whole[-6:]
    body = await api.ask("one two three four five", truncate_prompt_tokens=1000)
    assert body["usage"]["prompt_tokens"] == len(whole)


async def test_what_does_not_fit_the_context_is_cut_if_the_client_wants() -> None:
    async with chatting(ScriptedEngine(SCRIPT, context=100)) as api:
        assert (await api.refused("word " * 200))["code"] == "context_length_exceeded"
        body = await api.ask("word " * 200, truncate_prompt_tokens=-1, max_tokens=10)
        assert body["usage"]["prompt_tokens"] <= 90


# Thoughts


async def test_thoughts_may_be_hidden(api: ChatApi) -> None:
    shown = await api.choice("weather?", tools=[WEATHER_TOOL])
    hidden = await api.choice("weather?", tools=[WEATHER_TOOL], include_reasoning=False)

    assert shown["message"]["reasoning_content"] == shown["message"]["reasoning"] == "Hm, weather."
    assert not hidden["message"].keys() & {"reasoning", "reasoning_content"}
    assert hidden["message"]["content"] == "Let me look."
    usage = (await api.ask("weather?", include_reasoning=False))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] >= 3


async def test_a_server_chooses_the_names_of_thoughts() -> None:
    async with chatting(SCRIPT, reasoning_field="reasoning") as api:
        message = (await api.choice("weather?"))["message"]
        assert message["reasoning"] == "Hm, weather."
        assert "reasoning_content" not in message


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_thoughts_of_history_are_read_under_either_name(api: ChatApi, name: str) -> None:
    said = [user("Hi"), assistant("Ho", **{name: "Hm."}), user("And?")]
    prompt = await api.post(f"{CHAT}/render", chat(said))

    assert prompt["prompt"].count("Ho") == 1


async def test_a_thought_that_is_too_long_is_ended(api: ChatApi) -> None:
    choice = await api.choice("brood", thinking_token_budget=10)

    assert choice["message"]["reasoning"] == ("hm " * 9).strip()  # the first token opened the thought
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is so.", "stop")
    usage = (await api.ask("brood", thinking_token_budget=10))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 10


async def test_a_thought_may_be_forbidden_by_its_budget(api: ChatApi) -> None:
    choice = await api.choice("brood", thinking_token_budget=0)

    assert "reasoning" not in choice["message"]
    assert choice["message"]["content"] == "It is so."


async def test_a_model_that_does_not_think_keeps_any_budget() -> None:
    async with chatting(SCRIPT, dialect="plain") as api:
        assert (await api.choice("Hi", thinking_token_budget=0))["message"]["content"] == HELLO


# Streams


async def test_usage_comes_as_asked(api: ChatApi) -> None:
    usage = (await api.ask("Hi"))["usage"]
    plain = await api.stream("Hi")
    *others, last = await api.stream("Hi", stream_options={"include_usage": True})
    *each, whole = await api.stream(
        "Hi", stream_options={"include_usage": True, "continuous_usage_stats": True}
    )

    assert not any("usage" in chunk for chunk in plain)
    assert all(chunk["usage"] is None for chunk in others)
    assert last["usage"] == whole["usage"] == usage
    assert last["choices"] == whole["choices"] == []
    assert [chunk["usage"]["completion_tokens"] for chunk in each] == [0, 1, 2, 3, 4, 5, 5]


async def test_a_server_may_tell_usage_always() -> None:
    async with chatting(SCRIPT, force_include_usage=True) as api:
        *_, last = await api.stream("Hi")
        assert last["usage"]["completion_tokens"] == 5
        assert last["choices"] == []


async def test_padding_comes_only_if_asked_for(api: ChatApi) -> None:
    padded = await api.stream("Hi", stream_options={"include_obfuscation": True})
    plain = await api.stream("Hi", stream_options={"include_obfuscation": False})

    said = [chunk for chunk in padded if chunk["choices"][0]["delta"].get("content")]
    assert len(said) == 5
    lengths = {len(chunk["obfuscation"]) + len(chunk["choices"][0]["delta"]["content"]) for chunk in said}
    assert len(lengths) == 1
    assert not any("obfuscation" in chunk for chunk in plain)


# Returned fields


async def test_metadata_and_tier_are_told_back(api: ChatApi) -> None:
    body = await api.ask("Hi", metadata={"k": "v"}, service_tier="flex", user="u")
    assert (body["metadata"], body["service_tier"]) == ({"k": "v"}, "default")

    plain = await api.ask("Hi")
    assert not plain.keys() & {"metadata", "service_tier", "prompt_logprobs", "prompt_token_ids"}


# History

WEATHER_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def called(**function: Any) -> dict[str, Any]:
    return {**WEATHER_CALL, "function": {"name": "f", "arguments": "{}", **function}}


BAD_HISTORIES: dict[str, tuple[list[Any], list[str]]] = {
    "arguments that are no JSON": (
        [
            assistant(None, tool_calls=[called(arguments='{"a": ')]),
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ],
        ["messages[1].tool_calls[0].function.arguments is no JSON object"],
    ),
    "arguments as an object": (
        [
            assistant(None, tool_calls=[called(arguments={"a": 1})]),
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ],
        ["messages[1].tool_calls[0].function.arguments is an object, not JSON as text"],
    ),
    "no arguments": (
        [
            assistant(None, tool_calls=[called(arguments=None)]),
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ],
        [],
    ),
    "no name": (
        [
            assistant(None, tool_calls=[called(name="")]),
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ],
        ["messages[1].tool_calls[0].function.name is empty"],
    ),
    "empty tool calls": ([assistant("So.", tool_calls=[])], ["messages[1].tool_calls is empty"]),
    "nothing said": ([assistant(None)], ["messages[1] says nothing"]),
    "a result without a call": (
        [{"role": "tool", "tool_call_id": "c9", "content": "x"}],
        ["the result 'c9' answers no call"],
    ),
    "a call without a result": (
        [assistant(None, tool_calls=[called()])],
        ["the call 'c1' has no result"],
    ),
    "a result without an id": (
        [assistant(None, tool_calls=[called()]), {"role": "tool", "content": "x"}],
        ["messages[2].tool_call_id is missing"],
    ),
    "a result without content": (
        [assistant(None, tool_calls=[called()]), {"role": "tool", "tool_call_id": "c1"}],
        ["messages[2].content is missing"],
    ),
}


@pytest.mark.parametrize("name", BAD_HISTORIES)
async def test_a_bad_history_is_repaired_and_the_log_says_so(api: ChatApi, name: str) -> None:
    history, repairs = BAD_HISTORIES[name]
    said = [user("Hi"), *history, user("And?")]
    for more in ({}, {"tools": [WEATHER_TOOL]}):
        with capture_logs() as logs:
            assert (await api.ask(said, **more))["choices"][0]["message"]["content"] == HELLO
        told = [what for entry in logs if entry["event"] == "request repaired" for what in entry["what"]]
        assert told == repairs


async def test_a_good_history_is_not_repaired(api: ChatApi) -> None:
    said = [
        user("Hi"),
        assistant(None, tool_calls=[called()]),
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    with capture_logs() as logs:
        await api.ask(said)
    assert not any(entry["event"] == "request repaired" for entry in logs)
