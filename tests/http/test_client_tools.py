"""Tools that the client runs and that have items of their own: calls, answers, and what is none of them."""

import json
from typing import Any

import pytest

from tests.acting import TakingTurns
from tests.http.api import Api, client, prompt_of, text_of, user
from tests.http.messages_api import asking as messages
from tests.media import data_url, encoded, png
from tests.server import Running, running

COMPUTER = {"type": "computer"}
PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 1024,
    "display_height": 768,
    "environment": "browser",
}
SHELL = {"type": "shell", "environment": {"type": "local"}}
CLICK = {"type": "click", "x": 5, "y": 7, "button": "left"}
SHOWN = {**CLICK, "keys": None}
TYPED = {"type": "type", "text": "choir"}
COMMANDS = {"commands": ["ls"], "timeout_ms": 10, "max_output_length": None}
EXEC = {"command": ["ls", "-l"], "env": {"A": "b"}, "timeout_ms": None, "working_directory": "/tmp"}  # noqa: S108
PATCH = {"type": "create_file", "path": "a.txt", "diff": "+one"}

# tool, what the model calls it, what it writes, what the item has, and what that has for what is none of it
TOOLS: list[tuple[dict[str, Any], str, Any, dict[str, Any], dict[str, Any]]] = [
    (
        COMPUTER,
        "computer",
        {"actions": [CLICK, TYPED]},
        {"type": "computer_call", "actions": [SHOWN, TYPED], "pending_safety_checks": []},
        {"actions": [{"type": "screenshot"}]},
    ),
    (
        PREVIEW,
        "computer",
        {"action": CLICK},
        {"type": "computer_call", "action": SHOWN, "pending_safety_checks": []},
        {"action": {"type": "screenshot"}},
    ),
    (
        {"type": "local_shell"},
        "local_shell",
        EXEC,
        {"type": "local_shell_call", "action": {"type": "exec", **EXEC}},
        {"action": {"type": "exec", "command": [], "env": {}, "timeout_ms": None, "working_directory": None}},
    ),
    (
        SHELL,
        "shell",
        COMMANDS,
        {"type": "shell_call", "action": COMMANDS, "environment": {"type": "local"}},
        {"action": {"commands": [], "timeout_ms": None, "max_output_length": None}},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        {"operation": PATCH},
        {"type": "apply_patch_call", "operation": PATCH},
        {"operation": {"type": "update_file", "path": "", "diff": ""}},
    ),
]
OUTPUTS = {
    "computer_call": {"type": "computer_screenshot", "image_url": data_url(png(3, 2))},
    "local_shell_call": "a.txt",
    "shell_call": [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    "apply_patch_call": "a.txt was made",
}
by_tool = pytest.mark.parametrize(
    ("tool", "name", "arguments", "item", "none"), TOOLS, ids=[each[0]["type"] for each in TOOLS]
)


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def bare(response: Any) -> list[Any]:
    own = ("id", "call_id")
    return [{name: item[name] for name in item if name not in own} for item in response["output"]]


@by_tool
async def test_a_call_is_an_item_that_the_client_answers(
    tool: Any, name: str, arguments: Any, item: Any, none: Any
) -> None:
    async with running(TakingTurns(called(name, arguments), "Done.")) as server, client(server) as api:
        whole = await api.create("Go!", tools=[tool])
        streamed = await api.streamed("Go!", tools=[tool])
        assert bare(whole) == bare(streamed) == [{**item, "status": "completed"}]
        assert whole["status"] == "completed"
        assert "notes" not in whole
        [call] = whole["output"]
        answer = {"type": f"{item['type']}_output", "call_id": call["call_id"]}
        answer |= {"id": call["call_id"], "output": OUTPUTS[item["type"]]}
        answer |= {"status": "completed"} if item["type"] == "apply_patch_call" else {}

        kept = await api.create([answer], tools=[tool], previous_response_id=whole["id"])
        assert text_of(kept) == "Done."
        prompt = prompt_of(server)
        assert f'"name": "{name}", "arguments": {{' in prompt
        shown = server.engine.seen[-1].prompt
        assert len(shown.media) == (1 if item["type"] == "computer_call" else 0)
        assert item["type"] == "computer_call" or "a.txt" in prompt

        sent = await api.create([user("Go!"), call, answer], tools=[tool], store=False)
        assert text_of(sent) == "Done."
        assert prompt_of(server) == prompt


@by_tool
async def test_what_is_none_of_the_tools_does_no_harm(
    tool: Any, name: str, arguments: Any, item: Any, none: Any
) -> None:
    status = "in_progress" if item["type"] == "apply_patch_call" else "incomplete"
    for wrong in ({"wibble": 1}, {}, "?"):
        async with running([{"output": called(name, wrong)}]) as server, client(server) as api:
            response = await api.create("Go!", tools=[tool])
        assert bare(response) == [{**item, **none, "status": status}]


async def refusals(api: Api, server: Running, tool: Any) -> list[str]:
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    answers = [
        await api.http.post("/chat/completions", json=chat),
        await api.http.post("/messages", json={**chat, "max_tokens": 9}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400]
    return [answer.json()["error"]["message"] for answer in answers]


async def test_what_a_model_is_told_and_other_apis_refuse() -> None:
    async with running([{"output": "Hi."}]) as server, client(server) as api:
        response = await api.create(
            "Hi", tools=[{**PREVIEW, "wibble": 1}, {**SHELL, "allowed_callers": None}]
        )
        prompt = prompt_of(server)
        choice = {"type": "computer_use_preview"}
        chosen = await api.refused("Hi", tools=[SHELL], tool_choice=choice)
        named = await api.create("Hi", tools=[PREVIEW, SHELL], tool_choice={"type": "shell"})
        told = await refusals(api, server, {"type": "apply_patch"})

    assert [note["param"] for note in response["notes"]] == ["tools[0].wibble"]
    assert "1024 by 768 pixels" in prompt
    assert '"double_click"' in prompt
    assert '"$ref"' not in prompt
    assert chosen["param"] == "tool_choice.type"
    assert named["tool_choice"] == {"type": "shell"}
    assert all("Use the Responses API" in message for message in told)


async def test_a_call_that_a_limit_cuts_is_incomplete() -> None:
    call = called("local_shell", EXEC)
    async with running([{"output": call, "split": "chars"}]) as server, client(server) as api:
        response = await api.streamed("Go!", tools=[{"type": "local_shell"}], max_output_tokens=50)

    assert (response["status"], [item["status"] for item in response["output"]]) == (
        "incomplete",
        ["incomplete"],
    )


async def test_messages_has_a_computer_of_its_own() -> None:
    tool = {
        "type": "computer_20250124",
        "name": "computer",
        "display_width_px": 1024,
        "display_height_px": 768,
        "display_number": 1,
    }
    click = {"action": "left_click", "coordinate": [5, 7]}
    async with messages(TakingTurns(called("computer", click), "Done.")) as api:
        first = await api.ask("Go!", tools=[tool])
        prompt = api.prompt
        [use] = first["content"]
        source = {"type": "base64", "media_type": "image/png", "data": encoded(png(3, 2))}
        shot = {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": [{"type": "image", "source": source}],
        }
        turns = [user("Go!"), {"role": "assistant", "content": first["content"]}]
        second = await api.ask(
            [_plain(turns[0]), turns[1], {"role": "user", "content": [shot]}], tools=[tool]
        )
        seen = api.server.engine.seen[-1].prompt.media

    assert (first["stop_reason"], use["type"], use["name"], use["input"]) == (
        *("tool_use", "tool_use", "computer"),
        click,
    )
    assert [note["param"] for note in first["notes"]] == ["tools[0].display_number"]
    assert "1024 by 768 pixels" in prompt
    assert [part.data for part in seen] == [png(3, 2)]
    assert second["content"][0]["text"] == "Done."


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("role", "content")}
