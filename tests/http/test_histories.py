"""What clients make of histories, in every API, with templates of every kind and with harmony."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.call_results import NO_RESULT
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from antiphon.dialects.tool_description import tool_prompt_of
from antiphon.engines.scripted import TEMPLATE as SCRIPTED
from antiphon.engines.scripted import ScriptedEngine
from tests.dialects import templates as families
from tests.render import templates
from tests.server import NO_TLS, running

TEMPLATES: dict[str, str | None] = {
    **templates.ALL,
    "scripted": SCRIPTED,
    "coder": families.CODER,
    "brackets": families.MISTRAL,
    "made up": families.MADE_UP,
    "harmony": None,
}
PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}}


class Client(NamedTuple):
    """Asks a server, and looks at its prompts."""

    http: httpx.AsyncClient
    engine: ScriptedEngine

    async def post(self, path: str, body: Any) -> httpx.Response:
        if isinstance(body, bytes):
            headers = {"content-type": "application/json"}
            return await self.http.post(path, content=body, headers=headers)
        return await self.http.post(path, json={"model": "scripted"} | body)

    async def prompt(self, path: str, body: Any) -> str:
        answered = await self.post(path, body)
        assert answered.status_code == 200, answered.text
        return self.engine.seen[-1].prompt.text


@asynccontextmanager
async def serving(template: str | None, dialect: str | None = None) -> AsyncIterator[Client]:
    """A server of a model with this template; without one, of a model that writes harmony."""
    output = "<|channel|>final<|message|>Fine.<|return|>" if template is None else "Fine."
    engine = ScriptedEngine([{"output": output}])
    engine.card = replace(engine.card, chat_template=template)
    dialect = dialect or ("openai" if template is None else "hermes")
    async with (
        running(engine, dialect=dialect) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", timeout=20) as http,
    ):
        yield Client(http, engine)


def in_chat(history: Sequence[Any]) -> dict[str, Any]:
    """`history` has texts of the user, lists of calls, and pairs of a call and its result."""
    messages: list[Any] = []
    for entry in history:
        match entry:
            case str():
                messages.append({"role": "user", "content": entry})
            case list():
                calls = [
                    {"id": f"call_{name}", "type": "function", "function": called(name)} for name in entry
                ]
                messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            case (name, result):
                messages.append({"role": "tool", "tool_call_id": f"call_{name}", "content": result})
    tool = {"type": "function", "function": {"name": "read_item", "parameters": PARAMETERS}}
    return {"messages": messages, "tools": [tool]}


def in_responses(history: Sequence[Any]) -> dict[str, Any]:
    items: list[Any] = []
    for entry in history:
        match entry:
            case str():
                items.append({"role": "user", "content": entry})
            case list():
                items += [
                    {"type": "function_call", "call_id": f"call_{name}", **called(name)} for name in entry
                ]
            case (name, result):
                items.append({"type": "function_call_output", "call_id": f"call_{name}", "output": result})
    tool = {"type": "function", "name": "read_item", "parameters": PARAMETERS}
    return {"input": items, "tools": [tool], "store": False}


def in_messages(history: Sequence[Any]) -> dict[str, Any]:
    messages: list[Any] = []
    for entry in history:
        role, block = "user", dict[str, Any]()
        match entry:
            case str():
                block = {"type": "text", "text": entry}
            case list():
                role = "assistant"
                blocks = [
                    {"type": "tool_use", "id": f"call_{name}", "name": "read_item", "input": {"item": name}}
                    for name in entry
                ]
                messages.append({"role": role, "content": blocks})
                continue
            case (name, result):
                block = {"type": "tool_result", "tool_use_id": f"call_{name}", "content": result}
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": role, "content": [block]})
    tool = {"name": "read_item", "input_schema": PARAMETERS}
    return {"messages": messages, "tools": [tool], "max_tokens": 50}


def called(name: str) -> dict[str, Any]:
    return {"name": "read_item", "arguments": f'{{"item": "{name}"}}'}


APIS = {"chat/completions": in_chat, "responses": in_responses, "messages": in_messages}
LETTERS = "abc"
CALLED = ["Which?", [*LETTERS]]


def in_order(prompt: str, *texts: str) -> bool:
    places = [prompt.find(text) for text in texts]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_results_are_in_the_order_of_their_calls_whatever_order_they_came_in(name: str) -> None:
    wanted = [f"value-{letter}" for letter in LETTERS]
    async with serving(TEMPLATES[name]) as client:
        for path, written in APIS.items():
            prompts = set()
            for order in permutations(LETTERS):
                results = [(letter, f"value-{letter}") for letter in order]
                prompts.add(await client.prompt(path, written([*CALLED, *results])))
            assert len(prompts) == 1, path
            assert in_order(*prompts, *wanted), path


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_missing_result_leaves_its_place_to_no_other(name: str) -> None:
    async with serving(TEMPLATES[name]) as client:
        for path, written in APIS.items():
            with capture_logs() as logs:
                history = [*CALLED, ("c", "value-c"), ("a", "value-a"), "go on"]
                prompt = await client.prompt(path, written(history))
            assert in_order(prompt, "value-a", NO_RESULT, "value-c", "go on"), path
            told = [entry["what"] for entry in logs if entry["event"] == "request repaired"]
            assert told == [["the call 'call_b' has no result"]], path


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_result_whose_call_was_trimmed_is_shown(name: str) -> None:
    histories = (
        [("a", "value-a"), "go on"],
        ["Which?", ("a", "value-a")],
        ["Which?", ["b"], ("a", "value-a"), ("b", "value-b")],
        ["Which?", ["b"], ("b", "value-b"), ("b", "value-a")],
    )
    async with serving(TEMPLATES[name]) as client:
        for history in histories:
            prompt = await client.prompt("chat/completions", in_chat(history))
            assert "value-a" in prompt, history


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_late_result_does_not_change_the_beginning_of_the_prompt(name: str) -> None:
    """The answer to the placeholder is in the cache of the engine."""
    first = in_chat([*CALLED, ("b", "value-b"), "go on"])
    answer = {"role": "assistant", "content": "Fine."}
    late = [
        {"role": "tool", "tool_call_id": f"call_{letter}", "content": f"value-{letter}"} for letter in "ca"
    ]
    async with serving(TEMPLATES[name]) as client:
        before = await client.prompt("chat/completions", first | {"add_generation_prompt": False})
        first["messages"] += [answer, *late]
        after = await client.prompt("chat/completions", first)
    if name != "llama":  # it writes the beginning of an answer in any case
        assert after.startswith(before.removesuffix("</s>")), after
    assert in_order(after, "value-b", "go on", "value-c", "value-a")


HALVED = {
    "chat/completions": {
        "messages": [
            {"role": "user", "content": "a\ud83d"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "f", "arguments": r'{"item": "b\ud83d", "\udc00": 1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "c\ud83d"}]},
        ],
        "metadata": {"\ud83d": "\udc00"},
    },
    "responses": {
        "input": [
            {"role": "user", "content": "a\ud83d"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": r'{"item": "b\ud83d"}'},
            {"type": "function_call_output", "call_id": "c", "output": "c\ud83d"},
        ],
        "metadata": {"\ud83d": "\udc00"},
    },
    "messages": {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "a\ud83d"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"item": "b\ud83d"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "c\ud83d"}]},
        ],
    },
}


@pytest.mark.parametrize("path", HALVED)
async def test_half_a_character_becomes_a_replacement(path: str) -> None:
    """As text of clients that cut texts, in any string: also in keys, and in JSON that is a text."""
    async with serving(SCRIPTED) as client:
        prompt = await client.prompt(path, json.dumps({"model": "scripted"} | HALVED[path]).encode())
        assert in_order(prompt, "a\ufffd", "b\ufffd", "c\ufffd")
        whole = json.dumps({"model": "scripted"} | HALVED[path]).replace("\\ud83d", "\\ud83d\\ude00")
        prompt = await client.prompt(path, whole.encode())
        assert in_order(prompt, "a\U0001f600", "b", "c\U0001f600")


TOOLS: dict[str, dict[str, Any]] = {
    "chat/completions": {"type": "function", "function": {"name": "read_item", "parameters": PARAMETERS}},
    "responses": {"type": "function", "name": "read_item", "parameters": PARAMETERS},
    "messages": {"name": "read_item", "input_schema": PARAMETERS},
}


@pytest.mark.parametrize("path", TOOLS)
async def test_what_a_function_has_beyond_openais_fields_reaches_the_template(path: str) -> None:
    returned = {
        "return": {"type": "number", "description": "degrees"},
        "strict": False,
        "defer_loading": True,
    }
    tool = TOOLS[path]
    tool = {**tool, "function": tool["function"] | returned} if "function" in tool else {**tool, **returned}
    async with serving(SCRIPTED) as client:
        body = APIS[path](["Hi"]) | {"tools": [tool]}
        prompt = await client.prompt(path, body)
        assert '"return": {"type": "number", "description": "degrees"}' in prompt
        assert "defer_loading" not in prompt
        assert "strict" not in prompt
        noted = [note["param"] for note in (await client.post(path, body)).json()["notes"]]
        assert [param.rpartition(".")[2] for param in noted] == ["defer_loading"]


ROLES = templates.CHATML.replace(
    "{%- for message in messages %}",
    "{%- for message in messages if message.role in ['user', 'assistant', 'document', 'ipython'] %}",
)
"""Shows these roles, and says nothing of others."""


@pytest.mark.parametrize("template", [ROLES, templates.CHATML])
async def test_roles_that_the_template_shows_are_passed_on(template: str) -> None:
    said = [{"role": "document", "content": "from afar"}, {"role": "user", "content": "Hi"}]
    async with serving(template) as client:
        prompt = await client.prompt("chat/completions", {"messages": said})
    assert in_order(prompt, "<|im_start|>document\nfrom afar<|im_end|>", "<|im_start|>user\nHi<|im_end|>")


@pytest.mark.parametrize("template", [ROLES, templates.XML, None])
async def test_roles_that_the_template_does_not_show_are_refused_by_name(template: str | None) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "critic", "content": "So?"}]
    async with serving(template) as client:
        for path, body in (
            ("chat/completions", {"messages": said}),
            ("chat/completions/batch", {"messages": [said[:1], said]}),
        ):
            refused = await client.post(path, body)
            error = refused.json()["error"]
            places = {"messages[1].role", "messages[1][1].role"}
            assert (refused.status_code, error["param"] in places) == (400, True), error
            assert "critic" in error["message"]


async def test_a_role_of_the_template_may_be_that_of_results() -> None:
    body = in_chat(["Which?", ["a"]])
    body["messages"] += [{"role": "ipython", "content": "value-a"}]
    async with serving(ROLES) as client:
        prompt = await client.prompt("chat/completions", body)
    assert in_order(prompt, "Which?", '"item": "a"', "<|im_start|>ipython\nvalue-a")
    assert NO_RESULT not in prompt


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])
async def test_tools_are_described_where_the_template_lists_none(dialect: Dialect) -> None:
    described = tool_prompt_of(dialect) is not None
    async with serving(templates.CHATML, dialect.names[0]) as client:
        for path, written in APIS.items():
            body = written(["Which?", ["a", "b"], ("b", "value-b"), ("a", "value-a")])
            if described:
                prompt = await client.prompt(path, body)
                assert in_order(prompt, "read_item", "value-a", "value-b")
            else:
                refused = await client.post(path, body)
                assert (refused.status_code, refused.json()["error"].get("param", "tools")) == (400, "tools")
