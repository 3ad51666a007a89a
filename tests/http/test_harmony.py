"""Harmony through both APIs over a real socket: clients can use any output of a gpt-oss model."""

from collections.abc import AsyncIterator

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.constraint import Gbnf
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import CAPABILITIES
from tests.http.harmony import (
    ANALYSIS,
    CALL,
    FINAL,
    PREAMBLE,
    ROME,
    START,
    Allowed,
    Answer,
    Named,
    Said,
    Way,
    Wish,
    by_chat,
    by_chat_streamed,
    by_responses,
    chat,
    chat_chunks,
    every_way,
    post,
    respond,
    response_body,
    response_events,
    written,
)
from tests.http.harmony_answers import CALLED, CASES, EVERYTHING, HEADERS, NOW, UNOFFERED
from tests.server import NO_TLS, running


@pytest.fixture
def engine() -> Said:
    return Said()


@pytest_asyncio.fixture
async def client(engine: Said) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running(engine, dialect="openai", date="2025-06-28") as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", timeout=20) as client,
    ):
        yield client


@every_way
async def test_what_is_written_is_read(client: httpx.AsyncClient, engine: Said, way: Way) -> None:
    for name, (output, expected) in CASES.items():
        for split in ("chars", None, "whole"):
            engine.says(output, split=split)
            assert await way(client) == expected, name


@every_way
async def test_a_message_to_a_tool_is_a_call(client: httpx.AsyncClient, engine: Said, way: Way) -> None:
    for name, (output, expected) in UNOFFERED.items():
        for wish in (Wish(), Wish(tools=())):
            engine.says(output)
            assert await way(client, wish) == expected, name


@pytest.mark.parametrize("way", [by_chat_streamed, by_responses])
async def test_a_recipient_stands_where_it_likes(client: httpx.AsyncClient, engine: Said, way: Way) -> None:
    for header in HEADERS:
        engine.says(f"{header}<|message|>{ROME}<|call|>")
        assert await way(client) == Answer("", "", CALLED, "tool_calls"), header


@pytest.mark.parametrize("arguments", ['{"city": Rome}', '{"city": "Rome"', "Rome", "[]"])
async def test_a_broken_call_shows_what_the_model_wrote(
    client: httpx.AsyncClient, engine: Said, arguments: str
) -> None:
    engine.says(f"{CALL}{arguments}<|call|>")
    for seen in (await by_chat(client), await by_responses(client)):
        assert (seen.text, seen.thoughts) == ("", "")
        assert seen.calls == [("get_weather", arguments)]
    assert (await by_chat(client)).reason == "tool_calls"


@every_way
async def test_an_answer_may_be_cut_anywhere(client: httpx.AsyncClient, engine: Said, way: Way) -> None:
    """What is there was said, or thought, or called; and no token of the format is in it."""
    for count in range(1, len(answer_of(Line(EVERYTHING)).chunks)):
        engine.says(EVERYTHING)
        seen = await way(client, Wish(limit=count))
        assert seen.reason == "length"
        assert "Hm.".startswith(seen.thoughts)
        assert "Wait.\n\nDone.".startswith(seen.text)
        assert all(name == "get_weather" and ROME.startswith(written) for name, written in seen.calls)


async def test_the_item_that_a_limit_cut_is_incomplete(client: httpx.AsyncClient, engine: Said) -> None:
    cut = set()
    for count in range(1, len(answer_of(Line(EVERYTHING)).chunks)):
        engine.says(EVERYTHING)
        *before, last = (await respond(client, Wish(limit=count)))["output"]
        assert {item["status"] for item in before} <= {"completed"}
        cut |= {last["type"]} if last["status"] == "incomplete" else set()
    assert cut == {"reasoning", "message", "function_call"}


async def test_phases_are_told(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(EVERYTHING)
    events = await response_events(client, Wish())
    items = events[-1]["response"]["output"]
    assert [item["phase"] for item in items if item["type"] == "message"] == ["commentary", "final_answer"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["phase"] for item in added if item["type"] == "message"] == ["commentary", "final_answer"]


# Tool choice


@every_way
async def test_a_call_is_text_where_none_is_wanted(client: httpx.AsyncClient, engine: Said, way: Way) -> None:
    for tools in ((), Wish().tools):
        engine.says(EVERYTHING)
        assert await way(client, Wish(choice="none", tools=tools)) == Answer(
            "Hm.", f"Wait.\n\n{ROME}\n\nDone."
        )
        assert ("# Tools" in engine.prompt) == bool(tools)


@every_way
async def test_one_call_is_seen_where_one_is_allowed(
    client: httpx.AsyncClient, engine: Said, way: Way
) -> None:
    engine.says(CASES["two calls"][0])
    seen = await way(client, Wish(more={"parallel_tool_calls": False}))
    assert seen == Answer("", "", CALLED, "tool_calls")


@every_way
async def test_a_tool_that_is_not_allowed_is_not_seen(
    client: httpx.AsyncClient, engine: Said, way: Way
) -> None:
    engine.says(CASES["two calls"][0])
    assert (await way(client, Wish(choice=Allowed("auto", "now")))).calls == [("now", "{}")]


@every_way
async def test_an_engine_without_constraints_says_what_is_unmet(
    client: httpx.AsyncClient, engine: Said, way: Way
) -> None:
    for choice in ("required", Named("now"), Allowed("required", "now")):
        engine.says(written(f"{FINAL}Hi."))
        seen = await way(client, Wish(choice=choice))
        assert (seen.text, seen.unmet) == ("Hi.", ("tool_choice: the model called no tool.",))
    engine.says(CASES["two calls"][0])
    assert (await way(client, Wish(choice="required"))).unmet == ()
    engine.says(written(f"{FINAL}Hi."))
    [unmet] = (await way(client, Wish(schema={"type": "integer"}))).unmet
    assert "not valid JSON" in unmet


THOUGHT = f"{ANALYSIS}Hm. to=functions.fly {{<|end|>{START}"
WAIT = f"{PREAMBLE}Wait.<|end|>{START}"
OTHER_WAY = f" to=functions.get_weather<|channel|>commentary json<|message|>{ROME}<|call|>"
FLY = "<|channel|>commentary to=functions.fly <|constrain|>json<|message|>{}<|call|>"

HELD: dict[str, tuple[Wish, list[str], list[str]]] = {
    "required": (
        Wish(choice="required"),
        [f"{CALL}{ROME}<|call|>", f"{THOUGHT}{NOW}", OTHER_WAY, f"{NOW}{START}{CALL}{ROME}<|call|>"],
        [f"{FINAL}Hi.", f"{THOUGHT}{FINAL}Hi.<|return|>", f"{CALL}{{}}<|call|>", FLY, "", "Hi."],
    ),
    "named": (
        Wish(choice=Named("get_weather")),
        [f"{CALL}{ROME}<|call|>", f"{THOUGHT}{OTHER_WAY}"],
        [NOW, f"{THOUGHT}{NOW}", f"{FINAL}Hi."],
    ),
    "allowed, one of them": (
        Wish(choice=Allowed("required", "now")),
        [NOW, f"{THOUGHT}{NOW}"],
        [f"{CALL}{ROME}<|call|>", f"{FINAL}Hi."],
    ),
    "allowed": (
        Wish(choice=Allowed("auto", "now")),
        [NOW, f"{FINAL}Hi.<|return|>", f"{THOUGHT}{FINAL}Hi.", f"{THOUGHT}{WAIT}{NOW}"],
        [f"{CALL}{ROME}<|call|>", f"{THOUGHT}{OTHER_WAY}"],
    ),
    "one only": (
        Wish(choice="required", more={"parallel_tool_calls": False}),
        [NOW, f"{THOUGHT}{NOW}"],
        [f"{NOW}{START}{NOW}"],
    ),
    "a schema": (
        Wish(schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                     "additionalProperties": False}, tools=()),
        [f'{FINAL}{{"a": 1}}<|return|>', f'{THOUGHT}{FINAL}{{"a": 1}}'],
        [f"{FINAL}Hi.", f'{PREAMBLE}{{"a": 1}}', f"{THOUGHT}{FINAL}{{}}", f"{THOUGHT}", NOW, "Hi."],
    ),
    "a schema or a call": (
        Wish(schema={"type": "integer"}),
        [f"{FINAL}7<|return|>", f"{THOUGHT}{NOW}"],
        [f"{FINAL}x<|return|>", FLY],
    ),
}  # fmt: skip
"""What an engine is held to: the wish, answers that it may write, and answers that it may not."""


@pytest.mark.parametrize("name", HELD)
async def test_an_engine_is_held_to_what_is_wanted_in_the_format_of_its_model(
    engine: Said, name: str
) -> None:
    engine.card = replace(engine.card, capabilities=replace(CAPABILITIES, constraints=(Gbnf,)))
    wish, right, wrong = HELD[name]
    async with (
        running(engine, dialect="openai") as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client,
    ):
        for way in (by_chat, by_responses):
            engine.says(right[0])
            assert (await way(client, wish)).unmet == ()
            assert [answer for answer in right if not engine.lets(answer)] == []
            assert [answer for answer in wrong if engine.lets(answer)] == []


# Further fields


@every_way
async def test_a_form_is_told_and_read_on_the_final_channel(
    client: httpx.AsyncClient, engine: Said, way: Way
) -> None:
    engine.says(written(f"{ANALYSIS}7?", f"{FINAL}7"))
    assert await way(client, Wish(schema={"type": "integer"})) == Answer("7?", "7")
    assert '# Response Formats\n\n## answer\n\n{"type":"integer"}<|end|>' in engine.prompt


async def test_log_probabilities_are_those_of_the_text(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(EVERYTHING)
    scored = Wish(more={"logprobs": True, "top_logprobs": 2})
    [choice] = (await chat(client, scored))["choices"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["Wait", ".", "Done", "."]
    engine.says(EVERYTHING)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in await chat_chunks(client, scored)]
    assert [entry for part in streamed if part for entry in part["content"]] == choice["logprobs"]["content"]
    engine.says(EVERYTHING)
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    items = (await respond(client, Wish(more=more)))["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    assert [[entry["token"] for entry in part["logprobs"]] for part in parts] == [
        ["Wait", "."],
        ["Done", "."],
    ]


async def test_the_tokens_of_thoughts_are_counted(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(EVERYTHING)
    whole = len(answer_of(Line(EVERYTHING)).chunks)
    for usage, details in (
        ((await chat(client, Wish()))["usage"], "completion_tokens_details"),
        ((await chat_chunks(client, Wish(more={"stream_options": {"include_usage": True}})))[-1]["usage"],
         "completion_tokens_details"),
        ((await respond(client, Wish()))["usage"], "output_tokens_details"),
    ):  # fmt: skip
        assert usage[details]["reasoning_tokens"] == 3  # with the marker after their header
        assert whole == usage.get("completion_tokens", usage.get("output_tokens"))


async def test_choices_are_decoded_apart(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(EVERYTHING, written(f"{FINAL}Hi."))
    choices = (await chat(client, Wish(more={"n": 2})))["choices"]
    assert [len(choice["message"].get("tool_calls", ())) for choice in choices] == [1, 0]
    assert [choice["message"]["content"] for choice in choices] == ["Wait.\n\nDone.", "Hi."]


async def test_a_stop_string_ends_the_text_and_no_thought(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(written(f"{ANALYSIS}Stop here.", f"{FINAL}One. Stop. Two."))
    assert await by_chat(client, Wish(more={"stop": "Stop"})) == Answer("Stop here.", "One. ")


async def test_a_thought_that_is_too_long_is_closed(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(f"{ANALYSIS}a b c d e f", written("Hi."))
    seen = await by_chat(client, Wish(more={"thinking_token_budget": 4}))
    assert seen == Answer("a b c", "Hi.")
    assert engine.seen[-1].prompt.text.endswith(f"{ANALYSIS}a b c<|end|>{START}{FINAL}")


async def test_a_background_response_is_read_like_any_other(client: httpx.AsyncClient, engine: Said) -> None:
    engine.says(EVERYTHING)
    body = await post(client, "/responses", {**response_body(Wish()), "background": True})
    events = await client.get(f"/responses/{body['id']}", params={"stream": "true"})
    assert b"response.completed" in events.content
    done = (await client.get(f"/responses/{body['id']}")).json()
    assert [item["type"] for item in done["output"]] == ["reasoning", "message", "function_call", "message"]
