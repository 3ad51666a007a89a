"""Conversations of Messages of which something is left out: edits, and summaries in the place of what was said."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types.beta import BetaMessage
from httpx2 import AsyncClient

from antiphon.apis.summaries import SUMMARY_INTRODUCTION
from antiphon.core.edits import REMOVED_RESULT
from antiphon.engines.scripted import ScriptedEngine
from tests.apis.messages.support import request
from tests.http.api import ask, user
from tests.http.messages_api import MessagesApi, asking, texts
from tests.http.positions.model import begins
from tests.run.support import until
from tests.run.test_context_edits import DROPS, KEEPS
from tests.server import NO_TLS

ASKED = "Our conversation is getting long"
SUMMARY = "The user counts sheep."
SCRIPT: list[dict[str, Any]] = [
    {"when": "Say nothing.", "output": " "},
    {"when": "Break.", "output": "x", "fail_after": 0},
    {"when": "Wait.", "output": "word", "delay_ms": 60_000},
    {"when": ASKED, "output": SUMMARY},
    {"when": "Number the sheep.", "output": SUMMARY},
    {"output": "Hello there!"},
]
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]
DATA = "data " * 60
CLEAR, THINKING, COMPACT = "clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"
SUMMARIZE = {"compaction": {"type": "summarize"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[MessagesApi]:
    async with asking(SCRIPT) as api:
        yield api


pytestmark = pytest.mark.asyncio(loop_scope="module")


def edits(*wanted: Any) -> dict[str, Any]:
    return {"context_management": {"edits": [*wanted]}}


def tokens(value: int) -> dict[str, Any]:
    return {"type": "input_tokens", "value": value}


def uses(value: int) -> dict[str, Any]:
    return {"type": "tool_uses", "value": value}


def exchange(number: int, name: str = "f", result: Any = DATA) -> list[dict[str, Any]]:
    """A call, and its result."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {"number": number}}
    answer = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


def talk(exchanges: int, *more: Any) -> list[Any]:
    first = {"role": "user", "content": "Count."}
    return [first, *(message for number in range(exchanges) for message in exchange(number)), *more]


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": [*content] if isinstance(content[0], dict) else content[0]}


ANSWERED = (said("assistant", "Counted."), said("user", "More?"))


async def count(api: MessagesApi, messages: Any, **fields: Any) -> Any:
    body = request(messages, **fields)
    del body["max_tokens"]
    return await api.post("/v1/messages/count_tokens", body)


# Edits


@pytest.mark.parametrize("dialect", ["hermes", "glm45", "kimi_k2", "mistral", "deepseek_v31"])
@pytest.mark.parametrize("least", [0, 150])
async def test_results_are_cleared_in_steps_with_true_counts(dialect: str, least: int) -> None:
    edit = {"type": CLEAR, "trigger": tokens(600), "keep": uses(1), "clear_at_least": tokens(least)}
    async with asking(SCRIPT, dialect=dialect) as api:
        prompts, cleared = [], [0]
        for number in range(12):
            messages = talk(number)
            body = await api.ask(messages, tools=TOOLS, **edits(edit))
            counted = await count(api, messages, tools=TOOLS, **edits(edit))
            whole = (await count(api, messages, tools=TOOLS))["input_tokens"]
            applied = body["context_management"]["applied_edits"]
            gone = sum(edit["cleared_input_tokens"] for edit in applied)
            assert counted["input_tokens"] == body["usage"]["input_tokens"] == whole - gone
            assert counted["context_management"] == {"original_input_tokens": whole}
            assert all(edit["cleared_input_tokens"] >= least for edit in applied)
            cleared.append(sum(edit["cleared_tool_uses"] for edit in applied))
            assert api.prompt.count(REMOVED_RESULT) == cleared[-1] < max(1, number)
            if cleared[-1] > cleared[-2]:
                prompts.clear()  # a step: the prompt begins anew from the results that went
            prompts.append(api.prompt)
            assert begins(prompts)
        assert cleared == sorted(cleared)
        assert 1 < len({*cleared}) < 8  # it was cut, and not each time


async def test_what_is_cleared_is_what_the_edit_says(api: MessagesApi) -> None:
    messages = [talk(0)[0], *exchange(0, "g"), *exchange(1), *exchange(2), *exchange(3)]
    edit = {
        "type": CLEAR,
        "trigger": uses(2),
        "keep": uses(1),
        "exclude_tools": ["g"],
        "clear_tool_inputs": ["f"],
    }
    body = await api.ask(messages, tools=TOOLS, **edits(edit))
    [applied] = body["context_management"]["applied_edits"]
    assert applied["cleared_tool_uses"] == 1
    assert '"number": 0' in api.prompt
    assert '"number": 1' not in api.prompt
    assert '"number": 2' in api.prompt
    await api.full(messages, tools=TOOLS, **edits(edit | {"clear_tool_inputs": False}))
    assert '"number": 1' in api.prompt


async def test_nothing_is_edited_below_the_limit(api: MessagesApi) -> None:
    await api.full(talk(5), tools=TOOLS)
    plain = api.prompt
    body = await api.ask(talk(5), tools=TOOLS, **edits({"type": CLEAR}, {"type": COMPACT}))
    assert body["context_management"] == {"applied_edits": []}
    assert api.prompt == plain


@pytest.mark.parametrize("template", [KEEPS, DROPS])
async def test_thinking_of_earlier_turns_is_cleared(template: str, tmp_path: Path) -> None:
    thinking = [{"type": "thinking", "thinking": f"thought {number}", "signature": ""} for number in range(3)]
    messages = [
        message
        for number, block in enumerate(thinking)
        for message in (
            said("user", f"ask {number}"),
            said("assistant", block, {"type": "text", "text": "ok"}),
        )
    ]
    messages += [said("user", "and?")]
    (path := tmp_path / "template.jinja").write_text(template)
    async with asking(SCRIPT, chat_template=path) as api:
        await api.full(messages)
        assert api.prompt.count("thought") == (3 if template == KEEPS else 0)
        for turns in (1, 2, 3):
            keep = {"type": "thinking_turns", "value": turns}
            body = await api.ask(messages, **edits({"type": THINKING, "keep": keep}))
            assert api.prompt.count("thought") == (turns if template == KEEPS else 0)
            applied = body["context_management"]["applied_edits"]
            assert [edit["cleared_thinking_turns"] for edit in applied] == ([3 - turns] if turns < 3 else [])
            whole = (await count(api, messages))["input_tokens"]
            gone = sum(edit["cleared_input_tokens"] for edit in applied)
            assert whole - gone == body["usage"]["input_tokens"]
            assert bool(body.get("notes")) is (template == DROPS and turns > 1)
        body = await api.ask(messages, **edits({"type": THINKING, "keep": "all"}))
        assert body["context_management"] == {"applied_edits": []}


async def test_a_template_with_a_variable_keeps_thinking(tmp_path: Path) -> None:
    (path := tmp_path / "template.jinja").write_text(
        DROPS.replace(
            "m.reasoning_content and", "m.reasoning_content and preserve_thinking or m.reasoning_content and"
        )
    )
    block = {"type": "thinking", "thinking": "thought", "signature": ""}
    messages = [
        said("user", "Hi"),
        said("assistant", block, {"type": "text", "text": "ok"}),
        said("user", "and?"),
    ]
    async with asking(SCRIPT, chat_template=path) as api:
        await api.full(messages)
        assert "thought" not in api.prompt
        for keep in ("all", {"type": "thinking_turns", "value": 2}):
            body = await api.full(messages, **edits({"type": THINKING, "keep": keep}))
            assert "thought" in api.prompt
            assert "notes" not in body


@pytest.mark.parametrize(
    ("edit", "param"),
    [
        ({"type": "clear_all"}, "type"),
        ({}, "type"),
        ({"type": CLEAR, "trigger": {"type": "words", "value": 3}}, "trigger.type"),
        ({"type": CLEAR, "trigger": {"type": "input_tokens"}}, "trigger.value"),
        ({"type": CLEAR, "trigger": tokens(-1)}, "trigger.value"),
        ({"type": CLEAR, "trigger": tokens(True)}, "trigger.value"),
        ({"type": CLEAR, "trigger": 3}, "trigger"),
        ({"type": CLEAR, "keep": tokens(3)}, "keep.type"),
        ({"type": CLEAR, "clear_at_least": uses(3)}, "clear_at_least.type"),
        ({"type": CLEAR, "exclude_tools": "f"}, "exclude_tools"),
        ({"type": CLEAR, "exclude_tools": [3]}, "exclude_tools"),
        ({"type": CLEAR, "clear_tool_inputs": "f"}, "clear_tool_inputs"),
        ({"type": THINKING, "keep": "some"}, "keep"),
        ({"type": THINKING, "keep": {"type": "some"}}, "keep.type"),
        ({"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}, "keep.value"),
        ({"type": COMPACT, "trigger": uses(3)}, "trigger.type"),
        ({"type": COMPACT, "instructions": 3}, "instructions"),
        ({"type": COMPACT, "pause_after_compaction": "yes"}, "pause_after_compaction"),
    ],
)
async def test_an_edit_that_cannot_be_made_is_refused(api: MessagesApi, edit: Any, param: str) -> None:
    error = await api.refused(talk(1), tools=TOOLS, **edits(edit))
    assert f"context_management.edits[0].{param}'" in error["message"]
    body = {"model": "scripted", "messages": talk(1), "tools": TOOLS, **edits(edit)}
    await api.post("/v1/messages/count_tokens", body, 400)


@pytest.mark.parametrize(
    "wanted", [[{"type": CLEAR}, {"type": CLEAR}], [{"type": CLEAR}, {"type": THINKING}]]
)
async def test_edits_have_an_order_and_come_once(api: MessagesApi, wanted: Any) -> None:
    assert "context_management.edits[1].type" in (await api.refused("Hi", **edits(*wanted)))["message"]


# Summaries


def compact(value: int = 300, **more: Any) -> dict[str, Any]:
    return edits({"type": COMPACT, "trigger": tokens(value), **more})


def block_of(body: Any) -> Any:
    [block, *_] = body["content"]
    assert block["type"] == "compaction"
    return block


def back(body: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": body["content"]}


async def both(api: MessagesApi, messages: Any, **fields: Any) -> Any:
    """A full answer of the beta API; a stream of it adds up to the same."""
    async with AsyncAnthropic(
        api_key="none", base_url=api.server.url, max_retries=0, http_client=AsyncClient(verify=NO_TLS)
    ) as client:
        given: dict[str, Any] = {"model": "scripted", "max_tokens": 100, "messages": messages, **fields}
        async with client.beta.messages.stream(**given) as stream:
            streamed = await stream.get_final_message()
    body = await api.post("/v1/messages", request(messages, **fields))
    whole = BetaMessage.model_validate(body).to_dict(mode="json")
    mine = streamed.to_dict(mode="json")
    for message in (whole, mine):
        message["content"] = [
            {name: value for name, value in block.items() if name != "parsed_output"}
            for block in message["content"]
        ]
    assert {**mine, "id": ""} == {**whole, "id": ""}
    return body


async def test_a_long_conversation_is_summarised_before_the_answer(api: MessagesApi) -> None:
    messages = talk(5, *ANSWERED)
    body = await both(api, messages, tools=TOOLS, **compact())

    assert [block["type"] for block in body["content"]] == ["compaction", "text"]
    assert block_of(body)["content"] == SUMMARY
    assert body["stop_reason"] == "end_turn"
    asked, answered = [*api.server.engine.seen][-2:]
    assert DATA in asked.prompt.text
    assert DATA not in answered.prompt.text
    assert f"{SUMMARY_INTRODUCTION}{SUMMARY}" in answered.prompt.text
    assert "Counted." not in answered.prompt.text
    assert answered.prompt.text.count("More?") == 1  # it still needs an answer
    usage = body["usage"]
    assert [entry["type"] for entry in usage["iterations"]] == ["compaction", "message"]
    assert usage["iterations"][0]["input_tokens"] == len(asked.prompt.ids)
    assert usage["iterations"][1]["input_tokens"] == usage["input_tokens"] == len(answered.prompt.ids)

    # The next turn goes on from there, and is short enough.
    longer = [*messages, back(body), said("user", "And?")]
    again = await both(api, longer, tools=TOOLS, **compact())
    assert [block["type"] for block in again["content"]] == ["text"]
    assert "iterations" not in again["usage"]
    assert begins([answered.prompt.text, api.prompt])
    # What comes before the summary may be left out, as far as it is answered.
    await api.full([back(body), said("user", "And?")], tools=TOOLS)
    assert SUMMARY in api.prompt
    assert DATA not in api.prompt


async def test_after_a_summary_it_may_pause(api: MessagesApi) -> None:
    messages = talk(5, *ANSWERED)
    body = await both(api, messages, tools=TOOLS, **compact(pause_after_compaction=True))
    assert [block["type"] for block in body["content"]] == ["compaction"]
    assert body["stop_reason"] == "compaction"
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (0, 0)
    assert [entry["type"] for entry in body["usage"]["iterations"]] == ["compaction"]
    again = await both(api, [*messages, back(body)], tools=TOOLS, **compact(pause_after_compaction=True))
    assert texts(again) == "Hello there!"
    assert "More?" in api.prompt


async def test_instructions_add_to_the_request_for_a_summary_or_replace_it(api: MessagesApi) -> None:
    messages = talk(5, *ANSWERED)
    await api.post(
        "/v1/messages", request(messages, tools=TOOLS, **compact(instructions="Number the sheep."))
    )
    asked = api.server.engine.seen[-2].prompt.text
    assert ASKED in asked
    assert "Number the sheep." in asked
    wanted = {"compaction": {"type": "summarize", "instructions": "Number the sheep."}}
    body = await both(api, messages, tools=TOOLS, **wanted)
    assert block_of(body)["content"] == SUMMARY
    assert ASKED not in api.prompt
    assert "Number the sheep." in api.prompt
    await both(api, messages, tools=TOOLS, compaction={"type": "summarize", "instructions": "  "})
    assert ASKED in api.prompt


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_a_summary_is_made_on_request_and_replaces_the_conversation(
    api: MessagesApi, role: str
) -> None:
    messages = talk(3, said("assistant", "Counted."))
    body = await both(api, messages, tools=TOOLS, **SUMMARIZE)
    assert (len(body["content"]), body["stop_reason"]) == (1, "compaction")
    streamed = await api.http.post(
        "/v1/messages", json=request(messages, tools=TOOLS, **SUMMARIZE, stream=True)
    )
    assert streamed.text.count('"compaction_delta"') == 1
    counted = await count(api, messages, tools=TOOLS, **SUMMARIZE)
    assert counted["input_tokens"] == body["usage"]["iterations"][0]["input_tokens"]
    await api.full([said(role, block_of(body)), said("user", "More?")], system="Be kind.", tools=TOOLS)
    assert api.prompt.index("Be kind.") < api.prompt.index(SUMMARY) < api.prompt.index("More?")
    assert DATA not in api.prompt


async def test_either_api_reads_the_summaries_of_the_other(api: MessagesApi) -> None:
    body = await both(api, talk(3, said("assistant", "Counted.")), tools=TOOLS, **SUMMARIZE)
    item = {"type": "compaction", "encrypted_content": block_of(body)["encrypted_content"]}
    await api.post("/v1/responses", ask([item, user("More?")], store=False))
    assert f"{SUMMARY_INTRODUCTION}{SUMMARY}" in api.prompt

    asked = ask([user("Hi"), {"role": "assistant", "content": "Counted."}])
    short = await api.post("/v1/responses/compact", asked)
    sealed = short["output"][-1]["encrypted_content"]
    block = {"type": "compaction", "content": None, "encrypted_content": sealed}
    await api.full([said("assistant", block), said("user", "More?")])
    assert f"{SUMMARY_INTRODUCTION}{SUMMARY}" in api.prompt
    assert sealed == item["encrypted_content"]


async def test_tools_and_settings_are_carried_over_a_summary(api: MessagesApi) -> None:
    own = {"name": "own", "input_schema": {"type": "object"}}
    later = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}

    def change(type_: str, **tool: Any) -> dict[str, Any]:
        return {"type": type_, "tool": tool}

    changes = [
        change("tool_addition", type="tool_definition", definition=own),
        change("tool_addition", type="tool_reference", name="later"),
        change("tool_removal", type="tool_reference", name="g"),
        change("tool_addition", type="tool_definition", definition=own | {"name": "gone"}),
        change("tool_removal", type="tool_reference", name="gone"),
    ]
    effort = {"role": "system", "output_config": {"effort": "low"}}
    messages = [
        *talk(5),
        said("assistant", "Counted."),
        said("system", *changes),
        effort,
        said("user", "More?"),
    ]
    body = await both(api, messages, tools=[*TOOLS, later], **compact())
    carried = block_of(body)["tool_changes"]
    assert [change["type"] for change in carried] == ["tool_addition", "tool_addition", "tool_removal"]
    prompt = api.prompt
    assert prompt.index('"name": "own"') < prompt.index(SUMMARY)
    assert prompt.index('"name": "later"') < prompt.index(SUMMARY)
    assert "You cannot call these functions any more: gone, g" in prompt or "any more: g" in prompt
    assert "Reasoning effort from now on" not in prompt

    await api.full([*messages, back(body), said("user", "And?")], tools=[*TOOLS, later])
    assert begins([prompt, api.prompt])
    # With the block alone it is the same.
    await api.full([back(body), said("user", "And?")], tools=[*TOOLS, later])
    alone = api.prompt
    assert '"name": "own"' in alone.partition(SUMMARY)[0]
    assert '"name": "later"' in alone.partition(SUMMARY)[0]
    assert "any more: g" in alone


async def test_the_effort_before_a_summary_counts_from_the_beginning(tmp_path: Path) -> None:
    (path := tmp_path / "template.jinja").write_text("Effort: {{ reasoning_effort }}." + KEEPS)
    low = {"role": "system", "output_config": {"effort": "low"}}
    block = {"type": "compaction", "content": SUMMARY}
    fields = {"output_config": {"effort": "high"}}
    async with asking(SCRIPT, chat_template=path) as api:
        await api.full([said("user", "Hi"), low, said("assistant", "Yes?"), said("user", "More?")], **fields)
        assert api.prompt.startswith("Effort: high.")
        await api.full([said("user", "Hi"), low, said("assistant", block), said("user", "More?")], **fields)
        assert api.prompt.startswith("Effort: low.")


def tampered(block: Any, **fields: Any) -> list[Any]:
    return [said("assistant", {**block, **fields}), said("user", "More?")]


async def test_a_block_that_was_changed_is_refused(api: MessagesApi) -> None:
    block = block_of(await both(api, talk(3, said("assistant", "Counted.")), tools=TOOLS, **SUMMARIZE))
    addition = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
    first = said("user", "Hi")
    cases = {
        "compaction_content_mismatch": tampered(block, content="The user counts goats."),
        "compaction_signature_invalid": tampered(block, content=None, encrypted_content="a1.AAAA"),
        "compaction_tool_changes_mismatch": tampered(block, tool_changes=[addition]),
        "compaction_block_ambiguous": [said("assistant", block, block), said("user", "More?")],
        "compaction_block_misplaced": [first, said("assistant", "Hi"), said("user", block)],
    }
    error = await api.refused([first, said("system", block)], tools=TOOLS)
    assert error["details"]["error_code"] == "compaction_block_misplaced"
    for code, messages in cases.items():
        error = await api.refused(messages, tools=TOOLS)
        assert error["details"]["error_code"] == code
        assert "messages[" in error["message"]
    unsealed = tampered(block, content="The user counts goats.", encrypted_content=None)
    error = await api.refused(unsealed, tools=TOOLS)
    assert error["details"]["error_code"] == "compaction_signature_invalid"
    assert "content" in (await api.refused(tampered(block, content="")))["message"]


async def test_a_block_may_come_without_some_of_its_fields(api: MessagesApi) -> None:
    block = block_of(await both(api, talk(3, said("assistant", "Counted.")), tools=TOOLS, **SUMMARIZE))
    shown = []
    for fields in (
        {},
        {"content": None},
        {"encrypted_content": None},
        {"tool_changes": None, "signature": None},
        {"signature": "of another server", "encrypted_content": "of another server"},
        {"cache_control": {"type": "ephemeral"}},
    ):
        await api.full(tampered(block, **fields))
        shown.append(api.prompt)
    assert {*shown} == {shown[0]}
    assert SUMMARY in shown[0]
    await api.full(tampered({"type": "compaction", "content": None}))
    assert SUMMARY_INTRODUCTION not in api.prompt


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([said("system", "Be kind.")], "compaction_nothing_to_summarize"),
        (talk(2)[:-1], "compaction_incomplete_turn"),
    ],
)
async def test_what_cannot_be_summarised(api: MessagesApi, messages: Any, code: str) -> None:
    error = await api.refused(messages, tools=TOOLS, **SUMMARIZE)
    assert error["details"]["error_code"] == code


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"compaction": {"type": "forget"}}, "compaction.type"),
        ({"compaction": {}}, "compaction.type"),
        ({"compaction": "summarize"}, "compaction"),
        ({"compaction": {"type": "summarize", "instructions": 3}}, "compaction.instructions"),
        (SUMMARIZE | edits({"type": CLEAR}), "context_management"),
        (SUMMARIZE | {"max_tokens": 0}, "compaction"),
    ],
)
async def test_a_summary_that_is_wanted_wrongly(api: MessagesApi, fields: Any, named: str) -> None:
    assert named in (await api.refused(talk(1), tools=TOOLS, **fields))["message"]


async def test_what_follows_a_summary_is_a_message_of_its_own(api: MessagesApi) -> None:
    block = {"type": "compaction", "content": SUMMARY}
    shown = []
    for messages in (
        [said("user", block, {"type": "text", "text": "More?"})],
        [said("user", block), said("user", "More?")],
        [said("assistant", block), said("user", "More?")],
    ):
        await api.full(messages)
        shown.append(api.prompt)
    assert {*shown} == {shown[0]}
    assert f"{SUMMARY}<|im_end|>\n<|im_start|>user\nMore?" in shown[0]


async def test_a_summary_without_words_changes_nothing(api: MessagesApi) -> None:
    messages = talk(5, said("assistant", "Counted."), said("user", "More?"))
    body = await both(api, messages, tools=TOOLS, **compact(instructions="Say nothing."))
    assert block_of(body)["content"] is None
    assert DATA in api.prompt
    await api.full([*messages, back(body), said("user", "And?")], tools=TOOLS)
    assert DATA in api.prompt


async def test_a_summary_that_fails_fails_the_answer(api: MessagesApi) -> None:
    for fields in (
        compact(instructions="Break."),
        {"compaction": {"type": "summarize", "instructions": "Break."}},
    ):
        body = request(talk(5), tools=TOOLS, **fields)
        assert (await api.post("/v1/messages", body, 500))["error"]["type"] == "api_error"


async def test_an_answer_that_was_begun_is_not_compacted(api: MessagesApi) -> None:
    messages = talk(5, said("assistant", "I have"))
    assert "messages" in (await api.refused(messages, tools=TOOLS, **compact()))["message"]
    await api.full(messages, tools=TOOLS, **compact(100_000))


async def test_a_client_that_leaves_stops_the_summary(api: MessagesApi) -> None:
    engine: ScriptedEngine = api.server.engine
    body = request(
        talk(5), tools=TOOLS, compaction={"type": "summarize", "instructions": "Wait."}, stream=True
    )
    async with AsyncClient(verify=NO_TLS, base_url=api.server.url) as http:
        http_request = http.build_request("POST", "/v1/messages", json=body)

        task = asyncio.create_task(http.send(http_request, stream=True))
        await until(lambda: engine.load.running == 1)
        task.cancel()
    await until(lambda: engine.load.running == 0)


async def test_a_batch_may_ask_for_summaries(api: MessagesApi) -> None:
    params = request(talk(5, *ANSWERED), tools=TOOLS, **compact())
    batch = await api.post("/v1/messages/batches", {"requests": [{"custom_id": "a", "params": params}]})

    async def ended() -> bool:
        return (await api.http.get(f"/v1/messages/batches/{batch['id']}")).json()[
            "processing_status"
        ] == "ended"

    async with asyncio.timeout(30):
        while not await ended():
            await asyncio.sleep(0.01)
    results = (await api.http.get(f"/v1/messages/batches/{batch['id']}/results")).text
    message = json.loads(results.splitlines()[0])["result"]["message"]
    assert [block["type"] for block in message["content"]] == ["compaction", "text"]
