"""`antiphon replay`: records from a server, from files, from the logs of background responses; and other dialects."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from antiphon.cli import main
from tests.server import NO_TLS, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "roll", "arguments": {}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "the dice", "output": f"I will. {CALL}"},
    {"when": "be broken", "output": "<tool_call>\n{nothing"},
    {"when": "a chart", "output": "red \u001b[31m"},
]
TOOL = {"type": "function", "function": {"name": "roll"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT, api_key=("a-key",), debug_answers=1) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer a-key"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url + "/v1", headers=headers) as http:
        yield http


async def answer(http: httpx.AsyncClient, text: str) -> str:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], "tools": [TOOL]}
    return str((await http.post("/chat/completions", json=body)).json()["id"])


async def replayed(server: Running, *arguments: str) -> int:
    return await asyncio.to_thread(
        main, ["replay", *arguments, "--url", f"{server.url}/v1", "--api-key", "a-key"]
    )


async def test_an_answer_is_decoded_again(
    server: Running, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await replayed(server, await answer(http, "Roll the dice")) == 0
    out = capsys.readouterr().out
    assert "<|im_start|>user\nRoll the dice<|im_end|>" in out
    assert f"## raw text\nI will. {CALL}\n" in out
    assert "## events, decoded as hermes, the same as recorded" in out
    assert 'text_delta x3 "I will."' in out
    assert "  call_started roll" in out
    assert "## verdicts\nnone\n" in out


async def test_verdicts_are_printed_and_no_control_characters(
    server: Running, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await replayed(server, await answer(http, "Please be broken"))
    assert "## verdicts\na marker that opens no call\n" in capsys.readouterr().out
    await replayed(server, await answer(http, "Draw a chart"))
    assert "red [31m" in capsys.readouterr().out


async def test_a_record_in_a_file_is_read_as_another_dialect(
    server: Running, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    record.write_bytes((await http.get(f"/debug/{await answer(http, 'Roll the dice')}")).content)
    assert main(["replay", str(record), "--dialect", "think"]) == 0
    out = capsys.readouterr().out
    assert "decoded as think instead of hermes" in out
    assert "call_started" not in out


async def test_what_is_decoded_otherwise_than_it_was_is_told(
    server: Running, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = (await http.get(f"/debug/{await answer(http, 'Roll the dice')}")).json()
    found["generations"][0]["end"].pop()
    record = tmp_path / "record.json"
    record.write_text(json.dumps(found))
    main(["replay", str(record)])
    assert "not the same as recorded" in capsys.readouterr().out


async def test_the_answer_of_a_server_of_conversations_is_shown_as_it_was_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    events = [{"type": "text_delta", "text": "Hi"}]
    generation = {
        "prompt": {"text": "", "messages": [{"role": "user"}]},
        "reading": {},
        "text": "",
        "steps": [{"text": "", "events": events}],
    }
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"id": "a", "generations": [generation], "unmet": ["format: it is none"]}))
    assert main(["replay", str(record)]) == 0
    out = capsys.readouterr().out
    assert '"role": "user"' in out
    assert 'text_delta "Hi"' in out
    assert "## unmet demands\nformat: it is none\n" in out


async def test_a_background_response_is_replayed_from_its_log(
    server: Running, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    body = {"model": "scripted", "input": "Roll the dice", "background": True, "tools": [tool]}
    created = (await http.post("/responses", json=body)).json()["id"]
    while (await http.get(f"/responses/{created}")).json()["status"] in ("queued", "in_progress"):
        pass
    await answer(http, "Please be broken")  # takes its place in memory
    assert await replayed(server, created) == 0
    out = capsys.readouterr().out
    assert "call_started roll" in out
    assert "the same as recorded" in out


async def test_an_answer_that_nobody_knows_is_one_line(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await replayed(server, "nothing") == 1
    assert "No details are kept of 'nothing'" in capsys.readouterr().err


async def test_a_file_that_is_no_record_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    record.write_text("{}")
    assert main(["replay", str(record)]) == 1
    assert "is not a record of an answer" in capsys.readouterr().err


async def test_dialects_that_are_none_are_refused_with_a_list(
    server: Running, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await replayed(server, await answer(http, "Roll the dice"), "--dialect", "nope") == 1
    assert "There is no dialect 'nope'. Use one of:" in capsys.readouterr().err
