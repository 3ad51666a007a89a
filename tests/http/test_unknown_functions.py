"""Calls of functions that nobody offers: the model gets the answer, unless a client might know them."""

import json
from typing import Any

import pytest

from antiphon.core.turn import Function, Hosted, HostedNames
from tests.acting import ActingTool
from tests.http.chat_api import CHAT, ChatApi, chatting

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def calling(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": 1}}}}\n</tool_call>'


SCRIPT = [
    {"when": "There is no function", "output": "Then I answer myself."},
    {"output": calling("fly")},
]
HOSTED = [{"type": "code_interpreter", "container": {"type": "auto"}}]
OWN: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
HI = [{"role": "user", "content": "Hi"}]


def asked(path: str, tools: list[Any], stream: bool) -> dict[str, Any]:
    given = {"input": "Hi"} if path == RESPONSES else {"messages": HI, "max_tokens": 99}
    return {"model": "scripted", **given, "tools": tools, "stream": stream}


async def answer(api: ChatApi, path: str, tools: list[Any], stream: bool) -> str:
    response = await api.http.post(path, json=asked(path, tools, stream))
    assert response.status_code == 200, response.text
    return response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_with_tools_of_the_server_only_the_model_is_told(path: str, stream: bool) -> None:
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}] if path == MESSAGES else HOSTED
    async with chatting(SCRIPT, tools=[ActingTool()]) as api:
        text = await answer(api, path, tools, stream)
        assert "python" in api.seen.prompt.text.partition("There is no function 'fly'")[2]
    assert "answer" in text
    if path == RESPONSES and not stream:
        call, message = json.loads(text)["output"]
        assert (call["type"], call["name"], call["arguments"]) == ("mcp_call", "fly", '{"a": 1}')
        assert "There is no function" in call["error"]["content"][0]["text"]
        assert message["content"][0]["text"] == "Then I answer myself."
    if path == MESSAGES and not stream:
        types = [block["type"] for block in json.loads(text)["content"]]
        assert types == ["mcp_tool_use", "mcp_tool_result", "text"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_with_functions_of_its_own_gets_the_call(stream: bool) -> None:
    async with chatting(SCRIPT, tools=[ActingTool()]) as api:
        own = [*HOSTED, {"type": "function", "function": OWN}]
        assert '"fly"' in await answer(api, CHAT, own, stream)
        assert '"function_call"' in await answer(
            api, RESPONSES, [*HOSTED, {"type": "function", **OWN}], stream
        )


async def test_a_model_that_goes_on_calling_comes_to_an_end() -> None:
    async with chatting([{"output": calling("fly")}], tools=[ActingTool()]) as api:
        body = await api.post(RESPONSES, {**asked(RESPONSES, HOSTED, False), "max_tool_calls": 3})
    assert [item["type"] for item in body["output"]].count("mcp_call") >= 3
    assert body["status"] in ("completed", "incomplete")


def test_names_that_begin_like_those_of_a_tool_are_the_servers() -> None:
    own, asking = Function("f"), Function("s__g", hosted=Hosted("mcp", "g", label="s", approval=True))
    search = Function("browser.search", hosted=Hosted("web_search", "search", native=True))
    names = HostedNames([own, asking, search])
    here = ("browser.search", "browser.fly", "s__fly", "s__g", "f", "fly", "browserfly")
    assert [name in names for name in here] == [True, True, True, False, False, False, False]
    assert "fly" in HostedNames([search])
    assert "fly" not in HostedNames([])  # no tools: an answer has no calls
