"""`antiphon batch` with a real server: sent, watched, fetched, and what it says when something is wrong."""

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from antiphon import batch_client
from antiphon.chat import ChatClient
from antiphon.cli import main
from tests.http.batches_api import body, line, lines_of
from tests.server_process import Process, serving

SCRIPT: list[dict[str, Any]] = [
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 20},
    {"output": "Hello there!"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("server")
    script = folder / "script.jsonl"
    script.write_text("\n".join(json.dumps(each) for each in SCRIPT))
    given = ("--engine", "scripted", "--script", str(script), "--api-key", "mine", "--port", "0")
    with serving(folder, *given, ANTIPHON_STORE="memory") as process:
        yield process


@pytest.fixture(autouse=True)
def environment(server: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_URL", f"{server.url}/v1")
    monkeypatch.setenv("ANTIPHON_API_KEY", "mine")
    monkeypatch.setattr(batch_client, "POLL_SECONDS", 0.02)


def results(path: Path) -> list[str]:
    return sorted(json.loads(each)["custom_id"] for each in path.read_text().splitlines())


@pytest.mark.parametrize("piece", [7, batch_client.PIECE_BYTES])
def test_a_file_is_sent_and_its_results_are_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(batch_client, "PIECE_BYTES", piece)
    file = tmp_path / "lines.jsonl"
    file.write_bytes(lines_of(line("a"), line("ü")))

    code = main(["batch", str(file), "--endpoint", "/v1/chat/completions"])

    said = capsys.readouterr()
    assert code == 0, said.err
    assert results(tmp_path / "lines.results.jsonl") == ["a", "ü"]
    assert {each.name for each in tmp_path.iterdir()} == {"lines.jsonl", "lines.results.jsonl"}
    assert "lines.results.jsonl" in said.err
    assert main(["batch", str(file)]) == 1  # the results are there already
    assert "--output" in capsys.readouterr().err


def test_the_endpoint_is_that_of_the_first_line(tmp_path: Path) -> None:
    file, output = tmp_path / "lines.jsonl", tmp_path / "out.jsonl"
    url = "/v1/embeddings"
    file.write_bytes(lines_of(line("a", {"model": "scripted", "input": "Hi"}, url)))

    assert main(["batch", str(file), "--output", str(output)]) == 0
    assert results(output) == ["a"]


def test_lines_that_failed_are_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(lines_of(line("a"), line("b", body(n=0))))

    assert main(["batch", str(file)]) == 1
    assert results(tmp_path / "lines.results.jsonl") == ["a"]
    assert results(tmp_path / "lines.results.errors.jsonl") == ["b"]
    assert "The batch has ended: 1 of 2 lines has an answer, 1 an error." in capsys.readouterr().err
    (tmp_path / "lines.results.jsonl").unlink()
    assert main(["batch", str(file)]) == 1
    assert "lines.results.errors.jsonl exists already" in capsys.readouterr().err


def test_every_wrong_line_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b"{\n" + lines_of(line("a"), line("a")))

    assert main(["batch", str(file)]) == 1
    said = capsys.readouterr().err
    assert "line 1: " in said
    assert "line 3: " in said
    assert "The batch has failed before any line was answered." in said
    assert [each.name for each in tmp_path.iterdir()] == ["lines.jsonl"]


def test_a_batch_is_watched_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "lines.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(lines_of(line("a")))

    assert main(["batch", str(file), "--no-watch"]) == 0
    batch_id = capsys.readouterr().out.strip()
    assert main(["batch", batch_id, "--output", str(output)]) == 0
    assert results(output) == ["a"]


def test_ctrl_c_leaves_the_batch_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(lines_of(line("a"), line("b", body("endless"))))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphon.batch_client.time.sleep", interrupt)
    assert main(["batch", str(file)]) == 130
    batch_id = capsys.readouterr().err.split()[-1]
    client = ChatClient(os.environ["ANTIPHON_URL"], api_key="mine")
    with client.request("POST", f"/batches/{batch_id}/cancel") as response:
        assert json.loads(response.read())["id"] == batch_id


def test_a_terminal_has_a_bar(tmp_path: Path, server: Process) -> None:
    file, shown = tmp_path / "lines.jsonl", io.StringIO()
    file.write_bytes(lines_of(line("a"), line("b")))
    client = ChatClient(f"{server.url}/v1", api_key="mine")
    batch = batch_client._submitted(client, file, None)
    console = Console(file=shown, force_terminal=True, width=120, highlight=False, markup=False)

    ended = batch_client._watched(client, batch, console)

    assert ended.status == "completed"
    assert "2/2" in shown.getvalue()
    assert "━" in shown.getvalue()


@pytest.mark.parametrize(
    ("name", "said"), [("nothing.jsonl", "cannot be read"), ("batch_none", "There is no batch 'batch_none'")]
)
def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    given = name if name.startswith("batch_") else str(tmp_path / name)

    assert main(["batch", given, "--output", str(tmp_path / "out.jsonl")]) == 1
    assert said in capsys.readouterr().err


ENDINGS = [
    ("failed", (0, 0, 0), "The batch has failed before any line was answered."),
    ("failed", (3, 2, 0), "The batch has failed: 2 of 3 lines have an answer."),
    ("expired", (3, 1, 2), "The batch has expired: 1 of 3 lines has an answer, 2 an error."),
    ("cancelled", (0, 0, 0), "The batch was cancelled before any line was answered."),
    ("cancelled", (3, 0, 0), "The batch was cancelled before any line was answered."),
    ("completed", (3, 2, 1), "The batch has ended: 2 of 3 lines have an answer, 1 an error."),
]


@pytest.mark.parametrize(("status", "counts", "sentence"), ENDINGS)
def test_each_ending_is_said(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    counts: tuple[int, int, int],
    sentence: str,
) -> None:
    batch = batch_client.BatchNow("batch_1", status, batch_client._Counts(*counts))
    monkeypatch.setattr(batch_client, "_get", lambda *_: batch)

    assert main(["batch", "batch_1"]) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("watch", [False, True])
def test_no_text_of_a_server_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, watch: bool
) -> None:
    file, bad = tmp_path / "lines.jsonl", "\x1b[2J"
    file.write_bytes(lines_of(line("a")))
    errors = {"data": [{"message": f"wrong{bad}", "line": 1}]}
    batches = [{"id": f"batch_1{bad}", "status": status, "errors": errors} for status in ("new", "failed")]
    said = iter([{"id": "file-1"}, *batches])

    @contextmanager
    def request(*_: Any, **__: Any) -> Iterator[io.BytesIO]:
        yield io.BytesIO(json.dumps(next(said)).encode())

    monkeypatch.setattr(ChatClient, "request", request)
    main(["batch", str(file), *([] if watch else ["--no-watch"])])
    shown = "".join(capsys.readouterr())
    assert "batch_1" in shown or "wrong" in shown
    assert "\x1b" not in shown
