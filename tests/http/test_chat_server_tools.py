"""Chat Completions with tools that the server runs: a client sees the answer, and no calls but its own."""

from typing import Any

import pytest

from antiphon.core.tool_result import ToolResult
from tests.acting import ActingTool, TakingTurns, harmony_turns
from tests.http.chat_api import chatting

PYTHON_CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>'
OWN_CALL = '<tool_call>\n{"name": "noon", "arguments": {}}\n</tool_call>'
CODE = {"type": "code_interpreter"}
NOON = {"type": "function", "function": {"name": "noon"}}


async def test_the_answer_is_what_is_said_over_all_generations() -> None:
    tool = ActingTool()
    engine = TakingTurns(f"<think>Hm.</think>Let me see.{PYTHON_CALL}", "<think>Ah.</think>It is 42.")
    async with chatting(engine, tools=[tool]) as api:
        choice = await api.choice("What is 6 * 7?", tools=[CODE])
    message = choice["message"]
    assert message["content"] == "Let me see.\n\nIt is 42."
    assert message["reasoning"] == "Hm.\n\nAh."
    assert message.get("tool_calls") is None
    assert choice["finish_reason"] == "stop"
    assert ("python", {"code": "6 * 7"}) in tool.done


async def test_all_prompts_are_counted() -> None:
    engine = TakingTurns(PYTHON_CALL, "It is 42.")
    async with chatting(engine, tools=[ActingTool()]) as api:
        usage = (await api.ask("What is 6 * 7?", tools=[CODE]))["usage"]
        chunks = await api.stream("What is 6 * 7?", tools=[CODE], stream_options={"include_usage": True})
    prompts = [len(generation.prompt.ids) for generation in engine.seen]
    assert usage["prompt_tokens"] == sum(prompts[:2])
    assert usage["completion_tokens"] == len(PYTHON_CALL) + len("It is 42.")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert chunks[-1]["usage"] == usage


async def test_a_budget_that_is_spent_without_a_word_is_told() -> None:
    async with chatting(TakingTurns(PYTHON_CALL, PYTHON_CALL), tools=[ActingTool()]) as api:
        choice = await api.choice("What is 6 * 7?", tools=[CODE], max_tool_calls=1)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert [usage["tool_calls"] for usage in choice["generations"]] == [1, 0]


async def test_the_clients_own_call_is_its_own() -> None:
    async with chatting(TakingTurns(f"{PYTHON_CALL}\n{OWN_CALL}"), tools=[ActingTool()]) as api:
        choice = await api.choice("Now?", tools=[CODE, NOON])
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "noon"
    assert choice["finish_reason"] == "tool_calls"


async def test_a_model_of_the_harmony_family_uses_the_tools_that_it_knows() -> None:
    tool = ActingTool(results=[ToolResult("42")])
    engine = TakingTurns(
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>analysis to=python code<|message|>6 * 7<|call|>",
        "<|channel|>final<|message|>It is 42.<|return|>",
        turns=harmony_turns,
    )
    async with chatting(engine, tools=[tool], dialect="openai") as api:
        choice = await api.choice("What is 6 * 7?", tools=[CODE])
    assert choice["message"]["content"] == "It is 42."
    assert choice["message"]["reasoning"] == "Hm."
    assert ("python", {"code": "6 * 7"}) in tool.done
    prompt = engine.seen[-1].prompt.text
    assert "## python\n\nUse this tool to execute Python code" in prompt
    assert "\n\nRuns Python.\n\n# Valid channels" in prompt
    assert "to=python<|channel|>analysis code<|message|>6 * 7<|call|>" in prompt
    assert "<|start|>python to=assistant<|channel|>analysis<|message|>42<|end|>" in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [CODE | {"container": "x"}], "tool_choice": {"type": "shell"}}, "tool_choice.type"),
        ({"tools": [CODE], "max_tool_calls": 0}, "max_tool_calls"),
    ],
)
async def test_what_is_not_run_here_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with chatting(TakingTurns(""), tools=[ActingTool()]) as api:
        assert (await api.refused("Hi", **fields))["param"] == param


async def test_a_prompt_is_rendered_with_the_tools_of_the_server() -> None:
    async with chatting(TakingTurns("Hi."), tools=[ActingTool()]) as api:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": [CODE]}
        rendered = await api.post("/v1/chat/completions/render", body)
        tokens = await api.post("/tokenize", body)
    assert "Runs Python." in rendered["prompt"]
    assert tokens["tokens"] == rendered["token_ids"]
