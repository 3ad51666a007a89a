"""The suggestions of `antiphon demo` show what they say."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from antiphon import demo
from antiphon.engines.scripted import ScriptedEngine
from tests.server import NO_TLS, running

URL = "http://127.0.0.1:8000"
AS_STARTED = {
    name: getattr(demo.MODEL, name) for name in ("model_name", "decision_prefill", "decision_orders")
}


def events(text: str) -> list[dict[str, Any]]:
    """The data of the events of a stream."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def joined(text: str, field: str) -> str:
    deltas = [event["choices"][0]["delta"] for event in events(text) if event.get("choices")]
    return "".join(delta.get(field) or "" for delta in deltas)


def reasoning(text: str) -> None:
    assert joined(text, "reasoning_content").startswith("Air scatters light.")
    assert joined(text, "content").startswith("Because air scatters **blue**")


def call(text: str) -> None:
    deltas = [event["choices"][0]["delta"] for event in events(text)]
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert parts[0]["name"] == "get_weather"
    assert json.loads("".join(part["arguments"] for part in parts)) == {"city": "Rome", "unit": "celsius"}


def structured(text: str) -> None:
    body = json.loads(text)
    assert json.loads(body["choices"][0]["message"]["content"])["inhabitants"] == 2750000
    assert "unmet" not in text


def unfitting(text: str) -> None:
    assert json.loads(text)["choices"][0]["unmet"]


def failure(text: str) -> None:
    *_, last = events(text)
    assert joined(text, "content").startswith("This answer")
    assert last["error"]["code"] == "engine_error"


def wrong(text: str) -> None:
    assert json.loads(text)["error"]["param"] == "temperature"


def anthropic(text: str) -> None:
    blocks = [
        event["content_block"]["type"] for event in events(text) if event["type"] == "content_block_start"
    ]
    assert blocks == ["thinking", "text"]


def decision(text: str) -> None:
    answers = json.loads(text)["answers"]
    assert answers["team"]["choice"] == "billing"
    assert answers["team"]["probabilities"] == pytest.approx({"billing": 0.87, "shipping": 0.13}, abs=0.01)
    assert 0.5 < answers["angry"]["noul"] < 1


def background(text: str) -> None:
    assert json.loads(text)["status"] == "queued"


SHOWN: dict[str, Callable[[str], None]] = {
    "Reasoning": reasoning,
    "A tool call": call,
    "Structured output": structured,
    "Output that does not fit": unfitting,
    "An engine that fails": failure,
    "A wrong request": wrong,
    "Anthropic's API": anthropic,
    "A decision": decision,
    "In the background": background,
}


def test_everything_to_try_is_tried() -> None:
    assert [each.title for each in demo.SUGGESTIONS] == [*SHOWN]


@pytest.fixture
def quick() -> ScriptedEngine:
    """The script, without its pauses."""
    lines = [json.loads(line) for line in demo.SCRIPT.read_text().splitlines()]
    return ScriptedEngine([{**line, "delay_ms": 0} for line in lines])


@pytest.mark.parametrize("number", range(len(demo.SUGGESTIONS)))
async def test_what_there_is_to_try_shows_what_it_says(quick: ScriptedEngine, number: int) -> None:
    command = [line for line in demo.greeting(URL) if line.startswith("  curl")][number]
    *_, url, _, header, _, body = shlex.split(command)
    name, _, value = header.partition(": ")
    async with (
        running(quick, **AS_STARTED) as server,
        httpx.AsyncClient(verify=NO_TLS, timeout=60, headers={name: value}) as client,
    ):
        answer = await client.post(url.replace(URL, server.url), content=body)
    SHOWN[demo.SUGGESTIONS[number].title](answer.text)


@pytest.mark.parametrize("options", [2, 3, 4, 5, 20, 26, 27, 255])
@pytest.mark.parametrize("kind", ["choice", "score"])
async def test_any_question_has_an_answer_that_stands_out(
    quick: ScriptedEngine, kind: str, options: int
) -> None:
    names = [f"option {number}" for number in range(options if kind == "choice" else min(options, 10))]
    criteria = dict.fromkeys(names) if kind == "choice" else names
    asked = {"type": kind, "instructions": "Which of them?", "criteria": criteria}
    body = {"state": "A text.", "questions": {"any": asked}, "x_diagnostics": True}
    async with (
        running(quick, **AS_STARTED) as server,
        httpx.AsyncClient(verify=NO_TLS, timeout=60, base_url=server.url) as client,
    ):
        answer = (await client.post("/v1/systemone", json=body)).json()
    first, second, *_ = sorted(answer["answers"]["any"]["probabilities"].values(), reverse=True)
    assert 0.7 < first < 1
    assert 0.05 < second < 0.25
    assert answer["x_diagnostics"]["any"]["label_mass"] > 0.5
    assert answer["x_diagnostics"]["any"]["truncated"] is (kind == "choice" and options > 20)


async def test_the_result_of_a_call_is_answered(quick: ScriptedEngine) -> None:
    asked = next(each for each in demo.SUGGESTIONS if each.title == "A tool call").body
    made = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "24"}
    told = [*asked["messages"], {"role": "assistant", "tool_calls": [made]}, result]
    async with (
        running(quick, **AS_STARTED) as server,
        httpx.AsyncClient(verify=NO_TLS, timeout=60, base_url=server.url) as client,
    ):
        answer = await client.post("/v1/chat/completions", json={**asked, "messages": told, "stream": False})
    assert answer.json()["choices"][0]["message"]["content"].startswith("It is sunny in **Rome**")


async def test_each_question_of_a_conversation_has_its_own_answer(quick: ScriptedEngine) -> None:
    asked = ["Why is the sky blue?", "Describe Rome.", "Hello!", "Why is the sky blue?"]
    told: list[dict[str, str]] = []
    async with (
        running(quick, **AS_STARTED) as server,
        httpx.AsyncClient(verify=NO_TLS, timeout=60, base_url=server.url) as client,
    ):
        for question in asked:
            told.append({"role": "user", "content": question})
            body = {"model": demo.NAME, "messages": told}
            answer = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
            told.append({"role": "assistant", "content": answer["content"]})
    said = [each["content"][:12] for each in told[1::2]]
    assert said == ["Because air ", '{"name": "Ro', "This is a sc", "Because air "]


def test_the_settings_play_the_script() -> None:
    assert demo.settings(demo.Settings(port=1)).port == 1
    assert demo.settings(demo.Settings()).engine.build()
