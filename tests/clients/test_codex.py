"""Codex, with its own metadata of a model that it does not know, and with models of its catalogue.

With those it sends its tools as `additional_tools`, finds others by `tool_search`, patches files with a custom tool,
and summarises what has become long. To OpenAI's server, in whose place ours stands then, it speaks by WebSocket.

Set ANTIPHON_TEST_CLIENTS=1 for these: they install Codex from npm.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.acting import TakingTurns
from tests.clients.asking import LARGE, ask, called, real_clients, run
from tests.clients.recorder import Recorder
from tests.render.templates import CHATML
from tests.server import served_model
from tests.tools.mcp_servers import serving

pytestmark = real_clients

PATH = "/v1/responses"
UNKNOWN = "Model metadata for `scripted` not found."
NOTHING: dict[str, Any] = {"ran": [], "called": [], "changed": [], "warned": [], "counted": True}
"""What a question leads to that Codex needs no tool for."""
EARLY = "model_auto_compact_token_limit = 16000"
"""Codex's own instructions and tools have 9000 tokens."""
PATCH = "*** Begin Patch\n*** Add File: made.txt\n+one\n*** End Patch\n"


async def codex(
    way: str,
    more: str,
    *questions: str,
    home: Path,
    engine: ScriptedEngine,
    recorder: Recorder,
    **options: Any,
) -> Any:
    """What Codex does at each question, with this engine's model, whose template begins no thought."""
    model = served_model(engine, dialect="hermes", template=CHATML)
    return await ask(
        *("codex", way, more, *questions),
        home=home,
        engine=[],
        model=engine.card.name,
        models=Models([model]),
        before=recorder.before,
        **options,
    )


def kinds(request: Any) -> list[str]:
    """The types of the items of a request."""
    return [item["type"] for item in request["input"]]


async def test_codex_runs_a_command_and_resumes(tmp_path: Path) -> None:
    script: list[dict[str, Any]] = [
        # The answer of the first run, sent again by the second.
        {"when": "It ran.<|im_end|>\n<|im_start|>user\nWhat ran?", "output": "It was echo."},
        {"when": "Process exited with code 0", "output": "It ran."},
        {
            "when": "Run it.",
            "output": "<think>\nA shell.\n</think>\n\nI run it.\n"
            + called("exec_command", {"cmd": "echo tool-ran-42"}),
        },
    ]

    first, second = await run("codex", "custom", "", "Run it.", "What ran?", home=tmp_path, script=script)

    [warning] = first.pop("warned")
    assert UNKNOWN in warning
    del second["warned"]
    assert first == {
        "ran": [[0, "tool-ran-42\n"]],
        "called": [],
        "changed": [],
        "said": ["I run it.", "It ran."],
        "counted": True,
    }
    assert second == {"ran": [], "called": [], "changed": [], "said": ["It was echo."], "counted": True}


async def test_codex_runs_javascript_with_tools_that_come_in_the_input(tmp_path: Path) -> None:
    recorder = Recorder()
    program = "const ran = await tools.exec_command({cmd: 'echo tool-ran-$((40+2)) > made.txt'}); text(ran)"
    engine = TakingTurns(called("functions__exec", {"input": program}), "It ran.", name="gpt-6-sol")

    [answer] = await codex("custom", "", "Run it.", home=tmp_path, engine=engine, recorder=recorder)

    assert answer == {**NOTHING, "ran": [[0, ""]], "said": ["It ran."]}
    assert (tmp_path / "made.txt").read_text() == "tool-ran-42\n"
    first, second = recorder.asked(PATH)
    assert (kinds(first)[0], first.get("tools")) == ("additional_tools", None)
    assert kinds(second)[-2:] == ["custom_tool_call", "custom_tool_call_output"]
    assert "functions__exec" in engine.seen[0].prompt.text


async def test_codex_finds_a_tool_by_websocket(tmp_path: Path) -> None:
    recorder = Recorder()
    engine = TakingTurns(
        called("tool_search", {"query": "add numbers"}),
        called("mcp__sums__add", {"a": 2, "b": 3}),
        called("apply_patch", {"input": PATCH}),
        "It is 5.",
        name="gpt-5.5",
    )
    async with serving() as sums:
        more = f'mcp_servers.sums.url = "{sums.url}"'
        [answer] = await codex("openai", more, "2 + 3?", home=tmp_path, engine=engine, recorder=recorder)

    made = tmp_path / "made.txt"
    assert answer == {
        **NOTHING,
        "called": [["add", {"a": 2, "b": 3}, "completed"]],
        "changed": [["add", str(made)]],
        "said": ["It is 5."],
    }
    assert (sums.told.calls, made.read_text()) == (["add"], "one\n")
    [socket] = recorder.of(PATH)
    warm, first, *after = recorder.asked(PATH)
    assert (socket.method, warm["generate"]) == ("SOCKET", False)
    assert all("previous_response_id" in request for request in (first, *after))
    assert [kinds(request) for request in after] == [
        ["tool_search_output"],
        ["function_call_output"],
        ["custom_tool_call_output"],
    ]
    assert "mcp__sums__add" not in engine.seen[0].prompt.text
    assert "mcp__sums__add" in engine.seen[-1].prompt.text


async def test_codex_summarises_by_websocket(tmp_path: Path) -> None:
    recorder = Recorder()
    long = f"Patch it. {'lorem ipsum ' * 4000}"
    script = [
        {"when": "SUMMARY: it is made.", "output": "It is made."},
        {"when": "Success. Updated the following files", "output": "SUMMARY: it is made."},
        {"when": "Patch it.", "output": called("apply_patch", {"input": PATCH})},
    ]

    engine = ScriptedEngine(script, name="gpt-5.5", context=LARGE)
    [answer] = await codex("openai", EARLY, long, home=tmp_path, engine=engine, recorder=recorder)

    assert answer == {**NOTHING, "changed": [["add", str(tmp_path / "made.txt")]], "said": ["It is made."]}
    requests = recorder.asked(PATH)
    assert kinds(requests[-2])[-1] == "compaction_trigger"
    assert kinds(requests[-1])[-1] == "compaction"


async def test_codex_summarises_by_itself(tmp_path: Path) -> None:
    """So it does with other servers than OpenAI's: it asks for a summary as for any other answer."""
    recorder = Recorder()
    script = [
        {"when": "SUMMARY: it ran.", "output": "It ran."},
        {"when": "Process exited with code 0", "output": "SUMMARY: it ran."},
        {"when": "Run it.", "output": called("exec_command", {"cmd": "echo tool-ran-42"})},
    ]

    long = f"Run it. {'lorem ipsum ' * 4000}"
    engine = ScriptedEngine(script, name="gpt-5.5", context=LARGE)
    [answer] = await codex("custom", EARLY, long, home=tmp_path, engine=engine, recorder=recorder)

    assert answer["ran"] == [[0, "tool-ran-42\n"]]
    assert answer["said"][-1] == "It ran."
    assert not any("compaction" in kind for request in recorder.asked(PATH) for kind in kinds(request))
    assert "SUMMARY: it ran." in json.dumps(recorder.asked(PATH)[-1]["input"][-1])


@pytest.mark.parametrize(("context", "summaries"), [(16_000, 1), (LARGE, 0)])
async def test_codex_reads_the_catalogue_of_the_server(context: int, summaries: int, tmp_path: Path) -> None:
    """It is told the context there: it summarises before that is full, and no earlier."""
    told, recorder = tmp_path / "instructions.md", Recorder()
    told.write_text("You write programs.")
    script = [
        {"when": "SUMMARY: it ran.", "output": "It ran."},
        {"when": "Process exited with code 0", "last": 4000, "output": "SUMMARY: it ran."},
        {"when": "Run it.", "output": called("exec_command", {"cmd": "echo tool-ran-42"})},
    ]
    engine = ScriptedEngine(script, name="own", context=context)
    long = f"Run it. {'lorem ipsum ' * 5500}"

    [answer] = await codex(
        *("command", "", long),
        home=tmp_path,
        engine=engine,
        recorder=recorder,
        codex_instructions=told,
    )

    assert (answer["ran"], answer["warned"]) == ([[0, "tool-ran-42\n"]], [])
    [listed, *_] = recorder.of("/v1/models")
    assert listed.query == "client_version=0.169.0"
    requests = recorder.asked(PATH)
    assert requests[0]["input"][0]["content"][0]["text"] == "You write programs."
    assert len(requests) == 2 + summaries, [kinds(request) for request in requests]
