"""Calls of another dialect in the text of answers, and the hint at it."""

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from antiphon.dialects.detection.foreign import ATTEMPTS, ForeignCalls
from tests.server import NO_TLS, running

TOOLS = {"get": {"type": "object", "properties": {"city": {"type": "string"}}}}
GLM = "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
KIMI = '<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'


@pytest.mark.parametrize(("text", "dialect"), [(GLM, "glm45"), (KIMI, "kimi_k2")])
def test_the_dialects_that_read_the_call_are_found_once(text: str, dialect: str) -> None:
    calls = ForeignCalls("hermes")
    assert not calls.find("Rome is in Italy.", TOOLS)
    found = calls.find(f"I look it up. {text}", TOOLS)
    assert dialect in found
    assert "hermes" not in found
    assert not calls.find(text, TOOLS)


def test_text_that_quotes_a_marker_is_no_call() -> None:
    calls = ForeignCalls("mistral")
    for _ in range(ATTEMPTS):
        assert not calls.find("Write `<tool_call>` before a call.", TOOLS)
    assert not calls.find(GLM, TOOLS)  # it is not looked at for ever
    assert not ForeignCalls("mistral").find(GLM, {"other": {}})
    assert not ForeignCalls("mistral").find(GLM, {})


async def test_the_log_says_which_dialect_to_try() -> None:
    tools = [{"type": "function", "function": {"name": "get", "parameters": TOOLS["get"]}}]
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    async with (
        running([{"output": KIMI}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        with capture_logs() as lines:
            for _ in range(2):
                await client.post("/v1/chat/completions", json=asked)
    hints = [line for line in lines if "another dialect" in line["event"]]
    assert [(hint["log_level"], hint["dialect"], hint["hint"]) for hint in hints] == [
        ("warning", "hermes", "Try --dialect kimi_k2.")
    ]
