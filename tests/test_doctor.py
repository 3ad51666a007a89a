"""`antiphon doctor`: each thing that would fail, the remedy, and the exit code."""

import os
import re
import resource
import shutil
import socket
import tomllib
from pathlib import Path

import pytest

from antiphon import doctor
from antiphon.cli import main
from antiphon.doctor import Check, State

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without this machine's own variables and store."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def rows(capsys: pytest.CaptureFixture[str], *tokens: str, code: int) -> dict[str, str]:
    """The state and what was found, by subject; a remedy is with its row. The command's exit code is `code`."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *tokens])
    assert ended.value.code == code
    found: dict[str, str] = {}
    for line in capsys.readouterr().out.partition("\n\n")[0].splitlines():
        row = re.fullmatch(r"(\S.*?) +(ok|note|fails) +(.*)", line)
        if row is not None:
            last, found[row[1]] = row[1], f"{row[2]} {row[3]}"
        else:
            found[last] += f" {line.strip()}"
    return found


def test_a_sound_machine_has_no_failures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = rows(capsys, "--port", "0", code=0)
    assert {"Python", "cores", "memory", "open files", "bubblewrap"} <= set(found)
    assert found["model"].startswith("ok SmolLM2")
    assert found["store"] == f"ok {tmp_path / 'data' / 'antiphon' / 'store.db'}"
    assert not (tmp_path / "data").exists()  # nothing is changed


def test_every_extra_has_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - {"test", "check"}
    found = rows(capsys, "--port", "0", code=0)
    assert {name.removeprefix("extra ") for name in found if name.startswith("extra ")} == set(doctor.EXTRAS)
    assert found["extra local"].startswith("ok")


def unused_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.mark.parametrize(
    ("tokens", "subject", "why"),
    [
        (["/no/such.gguf"], "model", "There is no model file /no/such.gguf."),
        (["{folder}/broken.gguf"], "model", "broken.gguf"),
        (["{folder}"], "model", "no GGUF"),
        (["http://user:word@127.0.0.1:{unused}"], "model", "no server at http://127.0.0.1:"),
        (["http://[::1"], "model", "no server at"),
        (["--keys", "/no/keys.toml"], "--keys", "/no/keys.toml does not exist"),
        (["--chat-template", "/no/such.jinja"], "--chat-template", "does not exist"),
        (["--tls-certificate", "{folder}/broken.gguf"], "TLS", "Give both, or none."),
        (["--port", "{taken}"], "address", "Address already in use"),
        (["--engine", "vllm", "{folder}"], "extra vllm", "Install it: pip install"),
        (["--engine", "vllm", "{folder}"], "model", "has no config.json"),
        (["--store", "sqlite:////dev/null/x.db"], "store", "cannot be written"),
        (["--store", "none", "--durable-streams"], "options", "a store that outlives the server"),
        (["--store", "memory", "--processes", "2"], "options", "cannot share a store in memory"),
        (["--prot", "1"], "configuration", "Did you mean --port?"),
        (["--config", "/no.toml"], "configuration", "Cannot read /no.toml"),
        (["--config", "{folder}/bad.toml"], "configuration", 'Unknown option "prot"'),
    ],
)
def test_what_would_fail(  # noqa: PLR0917
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokens: list[str],
    subject: str,
    why: str,
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith("/dev"))
    monkeypatch.setattr(doctor, "_requirements", lambda: {"vllm": ["no-such-package"]})
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "bad.toml").write_text("prot = 1\n")
    if tokens == ["{folder}"]:
        (tmp_path / "broken.gguf").unlink()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        places = {"folder": tmp_path, "unused": unused_port(), "taken": taken.getsockname()[1]}
        given = [token.format(**places) for token in tokens]
        found = rows(capsys, *given, *([] if "--port" in tokens else ["--port", "0"]), code=1)
    assert found[subject].startswith("fails ")
    assert why in found[subject]
    assert "word" not in "".join(found.values())


def test_a_server_that_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        found = rows(capsys, f"http://127.0.0.1:{server.getsockname()[1]}", "--port", "0", code=0)
    assert found["model"].startswith("ok a server listens at http://127.0.0.1:")


def test_a_variable_that_nothing_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_PROT", "1")
    found = rows(capsys, "--port", "0", code=0)
    assert found["variables"].startswith("note ANTIPHON_PROT is the variable of no option")


@pytest.mark.parametrize("needed", [False, True])
def test_bubblewrap_has_to_be_there_only_for_what_uses_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, needed: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    tokens = ["--python", "python3"] if needed else []
    found = rows(capsys, *tokens, "--port", "0", code=int(needed))
    assert found["bubblewrap"].startswith("fails" if needed else "note")
    assert "apt-get install bubblewrap" in found["bubblewrap"]


def test_a_model_that_is_larger_than_the_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "main_memory", lambda: 2**20)
    monkeypatch.setattr(doctor, "_has_gpu", lambda: False)
    assert "do not fit" in rows(capsys, "--port", "0", code=1)["model"]
    monkeypatch.setattr(doctor, "_has_gpu", lambda: True)
    assert rows(capsys, "--port", "0", code=0)["model"].startswith("ok")


def test_few_open_files() -> None:
    assert doctor.open_files(1024).state is State.NOTE
    assert doctor.open_files(resource.RLIM_INFINITY).found == "no limit"


def test_the_exit_code_is_that_of_failures() -> None:
    notes = [Check("a", State.NOTE, "b"), Check("c", State.OK, "d")]
    assert doctor.exit_code(notes) == 0
    assert doctor.exit_code([*notes, Check("e", State.FAILS, "f")]) == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: antiphon doctor [MODEL] [OPTIONS]")
    assert "Nothing that was checked" not in out
