"""POST /v1/messages as a client sees it: answers, tools, reasoning, prefill, errors."""

import asyncio
import json
from typing import Any

import pytest

from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function, Hosted
from antiphon.engines.scripted import ScriptedEngine
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.web_search.details import SearchDetails
from antiphon.tools.tool import RequestedTool, ToolOffer
from tests.acting import ActingTool, TakingTurns
from tests.apis.messages.support import request
from tests.http.messages_api import asking, texts

WEATHER = {"name": "get_weather", "description": "Weather.", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"when": "<tool_response>", "output": "It is sunny."},
    {"when": "Weather?", "output": f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"},
    {"when": "Count.", "output": "one two three four five"},
    {"when": "breaks", "output": "word word", "fail_after": 1},
    {"when": "Once upon", "output": " a time."},
    {"output": "Hello there!"},
]
THINKING = {"thinking": {"type": "adaptive"}}


async def test_an_answer() -> None:
    async with asking(SCRIPT) as api:
        body = await api.ask("Hi", system="Be brief.")

    assert (texts(body), body["stop_reason"], body["model"]) == ("Hello there!", "end_turn", "scripted")
    assert body["id"].startswith("msg_")
    assert body["usage"]["output_tokens"] > 0


async def test_a_round_trip_of_a_tool_with_reasoning() -> None:
    async with asking(SCRIPT) as api:
        asked = [{"role": "user", "content": "Weather?"}]
        body = await api.ask(asked, tools=[WEATHER], **THINKING)
        thinking, said, call = body["content"]
        answer = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny", "is_error": False}
        more = [
            *asked,
            {"role": "assistant", "content": body["content"]},
            {"role": "user", "content": [answer]},
        ]
        after = await api.ask(more, tools=[WEATHER])
        prompt = api.prompt
        thinking["thinking"] = "I was never thought."
        refused = await api.refused(more, tools=[WEATHER])

    assert (thinking["type"], said["text"]) == ("thinking", "I look.")
    assert (call["name"], call["input"], body["stop_reason"]) == ("get_weather", {"city": "Rome"}, "tool_use")
    assert texts(after) == "It is sunny."
    assert "<tool_response>\nsunny" in prompt
    assert "messages[1].content[0].signature" in refused["message"]


async def test_reasoning_is_hidden_from_those_who_did_not_ask_for_it() -> None:
    async with asking(SCRIPT) as api:
        body = await api.ask("Weather?", tools=[WEATHER])

    assert [block["type"] for block in body["content"]] == ["text", "tool_use"]
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_reasoning_ends_where_its_budget_does() -> None:
    async with asking([{"when": "</think>", "output": "So be it."}, {"output": "hm " * 50}]) as api:
        body = await api.ask("Brood.", thinking={"type": "enabled", "budget_tokens": 10})

    thinking, said = body["content"]
    assert (len(thinking["thinking"].split()), said["text"]) == (10, "So be it.")


async def test_a_prompt_that_is_too_long_is_refused_in_words_that_claude_code_knows() -> None:
    async with asking(ScriptedEngine([{"output": "Hi"}], context=50)) as api:
        error = await api.refused("word " * 60)

    assert "prompt is too long" in error["message"]
    assert error["message"].startswith("messages: ")


@pytest.mark.parametrize("version", [None, "2023-06-01", "2026-10-21", "2099-01-01"])
async def test_each_version_and_beta_is_taken(version: str | None) -> None:
    headers = {"anthropic-beta": "claude-code-20250219,unknown-2099-01-01"}
    async with asking(SCRIPT, headers | ({"anthropic-version": version} if version else {})) as api:
        body = await api.post("/v1/messages?beta=true", request("Hi", temperature=1, top_k=5))

    assert texts(body) == "Hello there!"


async def test_what_an_assistant_began_goes_on() -> None:
    async with asking(SCRIPT) as api:
        tale = [{"role": "user", "content": "Tell a tale."}, {"role": "assistant", "content": "Once upon"}]
        body = await api.ask(tale)

    assert texts(body) == " a time."
    assert api.prompt.endswith("Once upon")


async def test_stop_sequences_and_limits() -> None:
    async with asking(SCRIPT) as api:
        stopped = await api.ask("Count.", stop_sequences=[" three"])
        cut = await api.ask("Count.", max_tokens=2)

    assert (texts(stopped), stopped["stop_reason"], stopped["stop_sequence"]) == (
        "one two",
        "stop_sequence",
        " three",
    )
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)


async def test_an_answer_that_fills_the_context_and_one_that_was_filtered() -> None:
    script = [{"when": "Brood.", "output": "word " * 500}, {"output": "I", "finish": "content_filter"}]
    async with asking(ScriptedEngine(script, context=200)) as api:
        full = await api.ask("Brood.", max_tokens=9999)
        filtered = await api.ask("Hi")

    assert full["stop_reason"] == "model_context_window_exceeded"
    assert full["usage"]["input_tokens"] + full["usage"]["output_tokens"] == 200
    assert (filtered["stop_reason"], filtered["stop_details"]["type"]) == ("refusal", "refusal")


async def test_a_conversation_of_the_responses_api_goes_on() -> None:
    async with asking(SCRIPT) as api:
        asked = {"role": "user", "content": "Weather?"}
        tool = {"type": "function", "name": "get_weather", "parameters": WEATHER["input_schema"]}
        response = await api.post(
            "/v1/responses",
            {
                "model": "scripted",
                "input": [asked],
                "tools": [tool],
                "reasoning": {"effort": "low"},
                "include": ["reasoning.encrypted_content"],
            },
        )
        thought, said, call = response["output"]
        text, sealed = thought["content"][0]["text"], thought["encrypted_content"]
        used = {
            "type": "tool_use",
            "id": call["call_id"],
            "name": call["name"],
            "input": json.loads(call["arguments"]),
        }
        blocks = [
            {"type": "thinking", "thinking": text, "signature": sealed},
            {"type": "text", "text": said["content"][0]["text"]},
            used,
        ]
        result = {"type": "tool_result", "tool_use_id": call["call_id"], "content": "sunny"}
        messages = [asked, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
        after = await api.ask(messages, tools=[WEATHER])
        blocks[0] = {"type": "redacted_thinking", "data": sealed}
        again = await api.ask(messages, tools=[WEATHER])
        blocks[0] = {"type": "thinking", "thinking": "I was never thought.", "signature": sealed}
        refused = await api.refused(messages, tools=[WEATHER])

    assert texts(after) == texts(again) == "It is sunny."
    assert "messages[1].content[0].signature" in refused["message"]  # so it was opened


async def test_errors_have_anthropics_shape() -> None:
    async with asking(SCRIPT) as api:
        wrong = await api.refused(max_tokens="many")
        nobody = await api.refused(status=404, model="nobody")
        failed = await api.post("/v1/messages", {"model": "scripted", "max_tokens": 9, "messages": [
            {"role": "user", "content": "breaks"}]}, 500)  # fmt: skip
        broken = await api.http.post(
            "/v1/messages", content=b"{", headers={"content-type": "application/json"}
        )
        method = await api.http.get("/v1/messages", headers={"x-request-id": "mine"})

    assert (wrong["type"], "'max_tokens'" in wrong["message"]) == ("invalid_request_error", True)
    assert nobody["type"] == "not_found_error"
    assert failed["error"]["type"] == "api_error"
    assert broken.json()["error"]["type"] == "invalid_request_error"
    assert (method.status_code, method.json()["type"]) == (405, "error")
    assert method.json()["request_id"] == method.headers["request-id"] == "mine"
    assert broken.json()["request_id"] == broken.headers["request-id"] is not None


async def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    async with asking(SCRIPT) as api:
        fields = {"model": "scripted", "max_tokens": 99, "stream": True}
        response = await api.http.post(
            "/v1/messages", json=fields | {"messages": [{"role": "user", "content": "breaks"}]}
        )

    *_, stop, error, end = response.text.split("\n\n")
    assert "event: content_block_stop" in stop
    assert error.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')
    assert error.endswith(f'"request_id":"{response.headers["request-id"]}"}}')
    assert end == ""


async def test_a_stream_that_says_nothing_pings() -> None:
    async with asking([{"output": "word", "delay_ms": 300}], keep_alive=0.05) as api:
        fields = {"model": "scripted", "max_tokens": 99, "stream": True}
        response = await api.http.post(
            "/v1/messages", json=fields | {"messages": [{"role": "user", "content": "?"}]}
        )

    assert 'event: ping\ndata: {"type":"ping"}\n\n' in response.text


async def test_tokens_are_counted_as_the_answer_counts_them() -> None:
    fields: dict[str, Any] = {
        "system": "Be brief.",
        "tools": [WEATHER],
        "messages": [{"role": "user", "content": "Hi"}],
    }
    async with asking(SCRIPT) as api:
        counted = await api.post("/v1/messages/count_tokens", {"model": "scripted", **fields})
        body = await api.full(**fields)
        wrong = await api.post("/v1/messages/count_tokens", {"model": "scripted", "messages": []}, 400)

    assert counted == {"input_tokens": body["usage"]["input_tokens"]}
    assert wrong["error"]["type"] == "invalid_request_error"


async def test_the_server_runs_its_own_tools() -> None:
    engine = TakingTurns(
        '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>',
        "It is 42.",
        "It was 42.",
    )
    code = [{"type": "code_execution_20250825", "name": "code_execution"}]
    async with asking(engine, tools=[ActingTool()]) as api:
        body = await api.full("What is 6 * 7?", tools=code)
        again = [{"role": "user", "content": "What is 6 * 7?"}, {"role": "assistant", "content": body["content"]},
                 {"role": "user", "content": "What was it?"}]  # fmt: skip
        await api.full(again, tools=code)

    use, result, said = body["content"]
    assert (use["name"], use["input"]) == ("code_execution", {"code": "6 * 7"})
    assert (result["tool_use_id"], result["content"]["stdout"]) == (use["id"], "42\n")
    assert (said["text"], body["stop_reason"]) == ("It is 42.", "end_turn")
    assert '"name": "python", "arguments": {"code": "6 * 7"}' in api.prompt
    assert "<tool_response>\n42" in api.prompt


async def test_a_budget_that_is_spent_without_a_word_pauses_the_turn() -> None:
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>'
    tools = [{"type": "code_execution_20250825", "name": "code_execution", "max_uses": 1}]
    async with asking(TakingTurns(call, call), tools=[ActingTool()]) as api:
        body = await api.full("What is 6 * 7?", tools=tools)
        events = await api.stream("What is 6 * 7?", tools=tools)
    assert body["stop_reason"] == events[-2]["delta"]["stop_reason"] == "pause_turn"
    assert [usage["tool_calls"] for usage in body["generations"]] == [1, 0]
    assert events[-2]["delta"]["generations"] == body["generations"]


async def test_what_a_search_found_comes_back_sealed() -> None:
    search = Function("web_search", "Searches.", {"type": "object"}, hosted=Hosted("web_search", "search"))
    found = ToolResult("[0] A page about cats.", SearchDetails("cats", ("https://a.example/",)))
    engine = TakingTurns(
        '<tool_call>\n{"name": "web_search", "arguments": {"query": "cats"}}\n</tool_call>', "Cats.", "Yes."
    )
    tools = [{"type": "web_search_20250305", "name": "web_search", "allowed_domains": ["a.example"],
              "user_location": {"type": "approximate", "city": "Rome"}}]  # fmt: skip
    tool = ActingTool("web_search", (search,), [found])
    tool.offer = offering(search)  # type: ignore[method-assign]
    async with asking(engine, tools=[tool]) as api:
        body = await api.full("Cats?", tools=tools)
        again = [{"role": "user", "content": "Cats?"}, {"role": "assistant", "content": body["content"]},
                 {"role": "user", "content": "Sure?"}]  # fmt: skip
        await api.full(again, tools=tools)

    [page] = body["content"][1]["content"]
    assert page["url"] == "https://a.example/"
    assert "cats" not in page["encrypted_content"]
    assert "[0] A page about cats." in api.prompt
    assert body["usage"]["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 0}
    opened = next(settings for what, settings in tool.done if what == "open")
    assert opened["filters"] == {"allowed_domains": ["a.example"]}


def offering(function: Function) -> Any:
    async def offer(requested: RequestedTool) -> ToolOffer:
        return ToolOffer((function,))

    return offer


async def test_a_shell_stands_for_code_execution_where_there_is_no_interpreter() -> None:
    shell = Function(
        "shell", "Runs.", {"type": "object", "properties": {"commands": {}}}, hosted=Hosted("shell", "run")
    )
    engine = TakingTurns(
        '<tool_call>\n{"name": "shell", "arguments": {"commands": ["ls"]}}\n</tool_call>', "a.txt."
    )
    tool = ActingTool("shell", (shell,), [ToolResult("a.txt", CommandDetails("a.txt\n", "", 0))])
    async with asking(engine, tools=[tool]) as api:
        body = await api.full("Files?", tools=[{"type": "code_execution_20250825", "name": "code_execution"}])

    use, result, _ = body["content"]
    assert (use["name"], use["input"]) == ("bash_code_execution", {"command": "ls"})
    assert result["content"]["stdout"] == "a.txt\n"


async def test_who_leaves_stops_the_engine() -> None:
    async with asking([{"output": "word ", "tokens": 20_000, "delay_ms": 2}]) as api:
        fields = {
            "model": "scripted",
            "max_tokens": 20_000,
            "stream": True,
            "messages": [{"role": "user", "content": "?"}],
        }
        async with api.http.stream("POST", "/v1/messages", json=fields) as response:
            await anext(response.aiter_bytes())
        async with asyncio.timeout(10):
            while api.server.engine.load.running:
                await asyncio.sleep(0.01)
