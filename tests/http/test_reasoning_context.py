"""Whose reasoning the model is shown: `reasoning.context`, with templates that differ in what they keep."""

from pathlib import Path
from typing import Any

import pytest

from tests.http.api import client, prompt_of, user
from tests.run.test_context_edits import DROPS, KEEPS
from tests.server import running

SWITCH = DROPS.replace(
    "m.reasoning_content and", "m.reasoning_content and keeps or m.reasoning_content and"
).replace("{%- set last", "{%- set keeps = preserve_thinking or false %}{% set last", 1)
TEMPLATES = {"keeps": KEEPS, "drops": DROPS, "switch": SWITCH}
ALL, CURRENT = {"old", "new"}, {"new"}
SHOWN: dict[tuple[str, str | None], tuple[set[str], str | None]] = {
    ("keeps", None): (ALL, None),
    ("keeps", "auto"): (ALL, "all_turns"),
    ("keeps", "current_turn"): (CURRENT, "current_turn"),
    ("keeps", "all_turns"): (ALL, "all_turns"),
    ("drops", None): (CURRENT, None),
    ("drops", "auto"): (CURRENT, "current_turn"),
    ("drops", "current_turn"): (CURRENT, "current_turn"),
    ("drops", "all_turns"): (CURRENT, "current_turn"),
    ("switch", None): (CURRENT, None),
    ("switch", "auto"): (CURRENT, "current_turn"),
    ("switch", "current_turn"): (CURRENT, "current_turn"),
    ("switch", "all_turns"): (ALL, "all_turns"),
}
"""Template and wish → what is shown, and what the response says."""


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


CONVERSATION = [
    user("Hi"),
    reasoning("old"),
    {"role": "assistant", "content": "Yes?"},
    user("Call."),
    reasoning("new"),
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]


@pytest.mark.parametrize("template", TEMPLATES)
async def test_the_reasoning_that_is_wanted_is_shown(template: str, tmp_path: Path) -> None:
    (path := tmp_path / "template.jinja").write_text(TEMPLATES[template])
    async with running([{"output": "ok"}], chat_template=path) as server, client(server) as api:
        for wish in (None, "auto", "current_turn", "all_turns"):
            shown, effect = SHOWN[template, wish]
            fields = {} if wish is None else {"reasoning": {"context": wish}}
            body = await api.create(CONVERSATION, **fields)
            assert {word for word in ALL if word in prompt_of(server)} == shown
            assert body["reasoning"].get("context") == effect
            noted = [note["param"] for note in body.get("notes", ())]
            assert noted == (["reasoning.context"] if (template, wish) == ("drops", "all_turns") else [])
            counted = await api.post(
                "/responses/input_tokens", {"model": "scripted", "input": CONVERSATION, **fields}
            )
            assert counted["input_tokens"] == body["usage"]["input_tokens"]


async def test_the_client_s_own_variables_win(tmp_path: Path) -> None:
    (path := tmp_path / "template.jinja").write_text(SWITCH)
    own = {"chat_template_kwargs": {"preserve_thinking": False}}
    async with running([{"output": "ok"}], chat_template=path) as server, client(server) as api:
        await api.create(CONVERSATION, reasoning={"context": "all_turns"}, **own)
        assert "old" not in prompt_of(server)
        assert (await api.refused("Hi", reasoning={"context": "some"}))["param"] == "reasoning.context"
