"""Answers that are cut by a limit, and closed: what each API says of them, and what else may end them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.chunks import Chunk
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import AntiphonError, ReplicaLostError
from antiphon.core.limits import Limits
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from tests.acting import ActingTool
from tests.closed_answers import cut_at_the_same_place
from tests.http.api import client
from tests.http.chat_api import ChatApi, chatting, function
from tests.http.messages_api import MessagesApi

pytestmark = pytest.mark.asyncio(loop_scope="module")

STORY = {
    "type": "object",
    "properties": {
        "story": {"type": "string"},
        "moods": {"type": "array", "items": {"type": "string"}},
        "ends": {"enum": ["well", "badly, as all know"]},
    },
    "required": ["story", "ends"],
    "additionalProperties": False,
}
TOLD = '{"story": "' + "once upon a time " * 30 + '", "ends": "well"}'
CALL = f'<tool_call>\n{{"name": "tell", "arguments": {TOLD}}}\n</tool_call>'
TELL = function("tell", STORY)
STRICT = function("tell", STORY, strict=True)
FORMAT = {"type": "json_schema", "json_schema": {"name": "story", "schema": STORY, "strict": True}}
TEXT = {"format": {"type": "json_schema", "name": "story", "schema": STORY, "strict": True}}
SCRIPT: list[dict[str, Any]] = [
    {"when": "tell?", "output": CALL},
    {"when": "think?", "output": f"<think>{'hm ' * 200}</think>{TOLD}"},
    {"when": "short?", "output": '{"story": "once", "ends": "well"}'},
    {"when": "again?", "output": '{"story": "' + "and so on " * 2000, "delay_ms": 1},
    {"when": "free?", "output": "and " * 100},
    {"output": TOLD},
]


class Obedient(ScriptedEngine):
    """Plays a script as an engine does that is held to the story: it ends the story where it may do no more."""

    def __init__(self, script: list[dict[str, Any]], context: int = 32768) -> None:
        super().__init__(script, context=context, capabilities=replace(CAPABILITIES, constraints=(Gbnf,)))
        self.asked: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.asked.append(request)
        if not request.answer_start:
            return super().generate(request, receiver)
        lines, self.answers = self.answers, [answer_of(Line(self._rest(request)))]
        try:
            return super().generate(replace(request, answer_start=""), receiver)
        finally:
            self.answers = lines

    def _rest(self, request: GenerationRequest) -> str:
        *_, written = request.answer_start.rpartition("</think>")
        assert isinstance(request.constraint, Gbnf)
        if "moods" in request.constraint.text:
            return TOLD.removeprefix(written)
        return '", "ends": "well"}' + ("}\n</tool_call>" if "<tool_call>" in written else "")


@pytest.fixture(autouse=True)
def the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at_the_same_place(monkeypatch)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> Obedient:
    return Obedient(SCRIPT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(engine: Obedient) -> AsyncIterator[ChatApi]:
    async with chatting(engine) as api:
        yield api


def _is_story(text: str) -> bool:
    value = json.loads(text)
    return value["ends"] in STORY["properties"]["ends"]["enum"] and isinstance(value["story"], str)  # type: ignore[index]


async def test_a_format_is_closed(api: ChatApi) -> None:
    choice = await api.choice("write", response_format=FORMAT, max_tokens=60)
    assert _is_story(choice["message"]["content"])
    assert choice["message"]["content"].startswith('{"story": "once upon a time once upon')
    assert choice["finish_reason"] == "length"
    [note] = choice["notes"]
    assert note["param"] == "max_tokens"
    assert "was cut" in note["message"]


async def test_what_is_left_to_choose_is_the_models(api: ChatApi, engine: Obedient) -> None:
    choice = await api.choice("write", response_format=FORMAT, max_tokens=100)
    assert json.loads(choice["message"]["content"])["ends"] == "well"
    assert isinstance(engine.asked[-1].constraint, Gbnf)
    assert "badly" in engine.asked[-1].constraint.text
    assert engine.asked[-1].answer_start.startswith(TOLD[:100])


async def test_what_ends_in_time_stays_as_it_is(api: ChatApi, engine: Obedient) -> None:
    size = len(await engine.tokenize([TOLD]))
    for limit in (size, size + 1, None):
        choice = await api.choice("write", response_format=FORMAT, max_tokens=limit)
        assert choice["message"]["content"] == TOLD
        assert (choice["finish_reason"], choice.get("notes")) == ("stop", None)
    assert (await api.choice("write", response_format=FORMAT, max_tokens=size - 1))["notes"]


@pytest.mark.parametrize(
    "demand",
    [
        {"tools": [TELL], "tool_choice": "required"},
        {"tools": [TELL], "tool_choice": {"type": "function", "function": {"name": "tell"}}},
        {"tools": [STRICT]},
        {"tools": [STRICT], "parallel_tool_calls": False},
    ],
)
async def test_a_call_is_closed(api: ChatApi, demand: dict[str, Any]) -> None:
    choice = await api.choice("tell?", max_tokens=90, **demand)
    [call] = choice["message"]["tool_calls"]
    assert _is_story(call["function"]["arguments"])
    assert choice["finish_reason"] == "length"
    assert choice["notes"]


async def test_what_is_not_demanded_is_cut(api: ChatApi) -> None:
    choice = await api.choice("free?", tools=[STRICT], max_tokens=20)
    assert (choice["finish_reason"], choice.get("notes")) == ("length", None)
    choice = await api.choice("tell?", tools=[TELL], max_tokens=40)
    assert choice.get("notes") is None


@pytest.mark.parametrize("budget", [None, 5, 20])
@pytest.mark.parametrize("limit", [40, 70, 250])
async def test_reasoning_leaves_room_for_the_form(api: ChatApi, budget: int | None, limit: int) -> None:
    for dialect_text in ("think?", "write"):
        choice = await api.choice(
            dialect_text, response_format=FORMAT, max_tokens=limit, thinking_token_budget=budget
        )
        assert _is_story(choice["message"]["content"]), choice
    usage = (await api.ask("think?", response_format=FORMAT, max_tokens=limit))["usage"]
    assert usage["completion_tokens"] <= limit


async def test_a_limit_that_is_too_low_is_refused(api: ChatApi) -> None:
    error = await api.refused("write", response_format=FORMAT, max_tokens=5)
    assert error["param"] == "max_tokens"
    [least] = [int(word) for word in error["message"].split() if word.isdigit() and word != "5"]
    assert (await api.choice("write", response_format=FORMAT, max_tokens=least))["message"]["content"]
    await api.refused("write", response_format=FORMAT, max_tokens=least - 1)
    error = await api.refused("write", response_format=FORMAT, max_completion_tokens=5)
    assert error["param"] == "max_completion_tokens"
    error = await api.not_completed("write", structured_outputs={"json": STORY}, max_tokens=5)
    assert error["param"] == "max_tokens"


async def test_completions_are_closed(api: ChatApi) -> None:
    for more in ({}, {"logprobs": 2}, {"logprobs": 1, "n": 2, "best_of": 3, "return_token_ids": True}):
        asked = {"structured_outputs": {"json": STORY}, "max_tokens": 60, **more}
        for choice in (await api.complete("write", **asked))["choices"]:
            assert _is_story(choice["text"])
            assert (choice["finish_reason"], len(choice["notes"])) == ("length", 1)
    chunks = await api.stream_of("write", structured_outputs={"json": STORY}, max_tokens=60)
    assert _is_story("".join(chunk["choices"][0]["text"] for chunk in chunks))


async def test_responses_are_closed(api: ChatApi) -> None:
    asked = {"text": TEXT, "max_output_tokens": 60}
    async with client(api.server) as responses:
        found = [await responses.create("write", **asked), await responses.streamed("write", **asked)]
        queued = await responses.create("write", **asked, background=True)
        found.append(await responses.finished(queued["id"]))
        error = await responses.refused("write", text=TEXT, max_output_tokens=5)
    for response in found:
        [message] = response["output"]
        assert _is_story(message["content"][0]["text"])
        assert (response["status"], message["status"]) == ("incomplete", "incomplete")
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [note["param"] for note in response["notes"]] == ["max_output_tokens"]
    assert error["param"] == "max_output_tokens"


async def test_messages_are_closed(api: ChatApi) -> None:
    messages = MessagesApi(api.http, api.server)
    form = {"type": "json_schema", "schema": STORY}
    message = await messages.ask("write", output_config={"format": form}, max_tokens=60)
    assert _is_story(message["content"][0]["text"])
    assert message["stop_reason"] == "max_tokens"
    [delta] = [
        event["delta"]
        for event in await messages.stream("write", output_config={"format": form}, max_tokens=60)
        if event["type"] == "message_delta"
    ]
    assert [note["param"] for note in delta["notes"]] == ["max_tokens"]
    assert "max_tokens" in str(await messages.refused("write", output_config={"format": form}, max_tokens=5))


async def test_a_full_context_is_no_limit_of_the_client() -> None:
    async with chatting(Obedient(SCRIPT, context=400)) as api:
        messages = MessagesApi(api.http, api.server)
        message = await messages.ask(
            f"write {'x ' * 330}", structured_outputs={"json": STORY}, max_tokens=10_000
        )
        assert _is_story(message["content"][0]["text"])
        assert message["stop_reason"] == "model_context_window_exceeded"
        error = await api.refused(f"write {'x ' * 385}", response_format=FORMAT)
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_an_answer_that_repeats_itself_is_closed() -> None:
    async with chatting(Obedient(SCRIPT), limit=Limits(repetitions=20)) as api:
        [choice] = (await api.ask("again?", response_format=FORMAT, max_tokens=20_000))["choices"]
        assert _is_story(choice["message"]["content"])
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")
        assert choice["notes"]


async def test_a_stop_string_ends_the_answer_where_it_is(api: ChatApi) -> None:
    choice = await api.choice("write", response_format=FORMAT, max_tokens=60, stop=["upon"])
    assert choice["message"]["content"] == '{"story": "once '
    assert (choice["finish_reason"], choice.get("notes")) == ("stop", None)


async def test_a_stop_string_in_what_closes_the_answer_ends_it_too(api: ChatApi) -> None:
    """It is no answer in its form then, and no note says that it were."""
    choice = await api.choice("write", response_format=FORMAT, max_tokens=60, stop=["ends"])
    assert choice["message"]["content"].startswith('{"story": "once upon a time once upon')
    assert choice["message"]["content"].endswith('", "')
    assert (choice["finish_reason"], choice.get("notes")) == ("stop", None)


class Losing(Obedient):
    """Its replicas are lost after so many tokens, one after the other."""

    def __init__(self, *cuts: int) -> None:
        super().__init__(SCRIPT)
        self.card = replace(self.card, capabilities=replace(self.card.capabilities, replicas=True))
        self.cuts = [*cuts]

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        return super().generate(request, _Lost(receiver, self.cuts.pop(0)) if self.cuts else receiver)


class _Lost:
    def __init__(self, receiver: Receiver, after: int) -> None:
        self._receiver = receiver
        self._after = after

    def push(self, chunks: list[Chunk]) -> None:
        self._after -= len(chunks)
        if self._after >= 0:
            self._receiver.push(chunks)
        elif self._after == -1:
            self._receiver.fail(ReplicaLostError())

    def fail(self, error: AntiphonError) -> None:
        self._receiver.fail(error)


async def test_an_answer_that_goes_on_elsewhere_is_closed() -> None:
    engine = Losing()
    async with chatting(engine) as api:
        whole = await api.choice("write", response_format=FORMAT, max_tokens=60)
        for cut in range(0, 60, 7):
            engine.cuts = [cut, 9]
            [choice] = (await api.ask("write", response_format=FORMAT, max_tokens=60))["choices"]
            assert choice["message"] == whole["message"], cut
            assert choice["notes"] == whole["notes"]


async def test_each_choice_is_closed(api: ChatApi) -> None:
    for choice in await api.choices("write", response_format=FORMAT, max_tokens=60, n=12, logprobs=True):
        assert _is_story(choice["message"]["content"])
        assert (
            "".join(token["token"] for token in choice["logprobs"]["content"]) == choice["message"]["content"]
        )


async def test_what_is_closed_is_checked_for_what_is_not_enforced(api: ChatApi) -> None:
    schema = {"type": "object", "properties": {"story": {"type": "string"}, "n": {"type": "integer", "multipleOf": 7, "minimum": 1}}, "required": ["story", "n"]}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": False}}
    choice = await api.choice("write", response_format=form, max_tokens=60)
    assert choice["notes"]
    assert "multiple" in choice["unmet"][0]


async def test_the_calls_of_a_tool_leave_no_room_for_a_form() -> None:
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "' + "1 + " * 20 + '1"}}\n</tool_call>'
    engine = Obedient([{"when": "42", "output": TOLD}, {"output": call}])
    async with chatting(engine, tools=[ActingTool()]) as api:
        asked = {"tools": [{"type": "code_interpreter"}], "response_format": FORMAT}
        full = await api.choice("count", **asked, max_tokens=120)
        assert _is_story(full["message"]["content"])
        cut = await api.choice("count", **asked, max_tokens=75)
        assert (cut["message"]["content"], cut["finish_reason"]) == ("", "length")


async def test_metrics_and_the_log_count_it(api: ChatApi) -> None:
    before = await _closed(api)
    await api.ask("write", response_format=FORMAT, max_tokens=60)
    assert await _closed(api) == before + 1


async def _closed(api: ChatApi) -> float:
    lines = (await api.http.get("/metrics")).text.splitlines()
    [line] = [line for line in lines if line.startswith("antiphon:closed_generations_total")]
    return float(line.split()[-1])
