"""The command line as a user meets it."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

import antiphon
from antiphon import demo
from antiphon.cli import main
from antiphon.config import Settings
from antiphon.core.errors import EngineError, NotFoundError
from antiphon.engines import llama_cpp
from antiphon.option_sources import option_names
from tests.dialects.templates import MADE_UP, TAGS
from tests.server import running

OPTIONS = sorted(option_names(*Settings().option_tables, llama_cpp.Options) | {"engine", "tool"})


def help_text(capsys: pytest.CaptureFixture[str], *tokens: str) -> str:
    assert main([*tokens, "--help"]) == 0
    return capsys.readouterr().out


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys)
    for command in ("serve", "chat", "batch", "launch", "inspect", "doctor", "check", "replay", "version"):
        assert command in text


@pytest.fixture(scope="module")
def lines_of_help() -> list[str]:
    """The help of `serve`: an option, its text and its variable on one line."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setenv("COLUMNS", "1000")
        assert main(["serve", "--help-all"]) == 0
    return out.getvalue().splitlines()


@pytest.mark.parametrize("name", OPTIONS)
def test_serve_help_documents_every_option(lines_of_help: list[str], name: str) -> None:
    flag = f"--{name.replace('_', '-')} "
    line = next(line for line in lines_of_help if line.startswith("│") and flag in line)
    words = line.partition(flag)[2].partition("[")[0]
    assert len(words.split()) >= 4, f"{name} has no docstring"
    assert f"[env var: ANTIPHON_{name.upper()}]" in line


def test_help_says_how_long_the_context_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"at most {llama_cpp.DEFAULT_CONTEXT}." in " ".join(
        help_text(capsys, "serve").replace("│", " ").split()
    )


COMMON = [
    "model",
    "engine",
    "model_name",
    "context",
    "gpu_layers",
    "host",
    "port",
    "api_key",
    "store",
    "config",
]


def shown(text: str) -> set[str]:
    """The options that a help text describes."""
    return {name.replace("-", "_") for name in re.findall(r"^│ (?:[A-Z-]+ )?--([a-z-]+)", text, re.MULTILINE)}


def test_the_short_help_has_the_ten_commonest_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(capsys, "serve")
    assert shown(text) == set(COMMON)
    assert text.index("│ MODEL --model") < text.index("│ --")
    assert "antiphon serve --help-all" in text


def test_the_whole_help_is_in_groups_and_begins_with_the_model(lines_of_help: list[str]) -> None:
    titles = [line.strip("╭─╮ ") for line in lines_of_help if line.startswith("╭")]
    assert titles[-13:] == [
        "Model",
        "Engine",
        "Network",
        "Keys",
        "Tools",
        "Images and files",
        "Moderation",
        "Decisions",
        "Store",
        "Limits",
        "Answers and streams",
        "Logs",
        "Configuration",
    ]
    assert "Parameters" not in titles  # the group of options without one
    rows = [line for line in lines_of_help if line.startswith("│ ") and "--help" not in line]
    assert rows[0].startswith("│ MODEL --model")
    assert shown("\n".join(rows)) == set(OPTIONS)
    assert len(rows) == len(OPTIONS)


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("sreve", '"serve"'),
        ("docter", '"doctor"'),
        ("serve --prot 80", "--port"),
        ("serve --log-level inof", '"info"'),
        ("serve --engine vlm", "vllm"),
        ("serve --limit body_byte=9", "body_bytes"),
        ("serve http://127.0.0.1:9 --upstream-kind olama", "ollama"),
        ("serve --tool shel", "shell"),
        ("launch codx", '"codex"'),
        ("serve --hlep", "--help"),
    ],
)
def test_an_unknown_word_has_the_nearest_known_one(
    capsys: pytest.CaptureFixture[str], command: str, near: str
) -> None:
    assert main(command.split()) == 2
    assert f"Did you mean {near}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("no such file. give another one.", "No such file. Give another one."),
        (
            "model.gguf is no file. hermes2 is none. See --help.",
            "model.gguf is no file. hermes2 is none. See --help.",
        ),
        (
            "\"a. b c\" is wrong. 'x. y z' and `a. b c` stay",
            "\"a. b c\" is wrong. 'x. y z' and `a. b c` stay",
        ),
        ("the file's name isn't right. it's wrong", "The file's name isn't right. It's wrong"),
    ],
)
def test_each_sentence_of_an_error_begins_with_a_capital_letter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, message: str, printed: str
) -> None:
    def serve(_settings: Settings) -> None:
        raise EngineError(message)

    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=serve))
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == f"antiphon: {printed}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for tokens in (["version"], ["--version"]):
        assert main(tokens) == 0
        assert capsys.readouterr().out.strip() == antiphon.__version__


def test_the_package_is_the_command() -> None:
    for program in ([str(Path(sys.executable).with_name("antiphon"))], [sys.executable, "-m", "antiphon"]):
        done = subprocess.run([*program, "version"], capture_output=True, text=True, check=True)  # noqa: S603
        assert done.stdout.strip() == antiphon.__version__


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    assert capsys.readouterr().err.startswith("antiphon: ")


def test_inspect_reports_on_a_template(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "some.jinja"
    path.write_text(TAGS)
    (tmp_path / "tokenizer_config.json").write_text('{"response_template": {"open": "<tool_call>"}}')

    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "dialect   hermes\n" in text
    assert "--dialect NAME" in text
    assert re.search(r"^scorer +best scores +evidence$", text, re.MULTILINE)
    assert re.search(r"^capability of the template +found +tried +so it is$", text, re.MULTILINE)
    assert re.search(r"^parallel calls +yes +two calls in one message +rendered$", text, re.MULTILINE)

    assert main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["dialect"] == "hermes"
    assert [scorer["name"] for scorer in report["scorers"]] == [
        "markers",
        "round trip",
        "metadata",
        "response template",
    ]
    assert report["scorers"][0]["scores"]["hermes"] == 4
    assert report["scorers"][1]["scores"]["hermes"] == 1
    assert report["scorers"][2]["seen"] == ["some"]
    assert "<tool_call>" in report["scorers"][3]["seen"]
    assert not report["unmatched"]
    assert report["tied"] == []
    assert report["capabilities"]["calls"]


def test_inspect_reports_an_unknown_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "strange.jinja"
    path.write_text(MADE_UP)

    assert main(["inspect", str(path)]) == 0
    assert "dialect   generic (doubtful)" in capsys.readouterr().out


def test_inspect_reads_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["inspect", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["dialect"], report["task"], report["encoder"]) == ("hermes", "generate", None)
    assert "llama" in report["scorers"][2]["seen"]

    for name in ("no.gguf", "no.jinja"):
        assert main(["inspect", str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.startswith("antiphon: ")


def test_inspect_refuses_a_kind_of_server_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "http://127.0.0.1:1", "--upstream-kind", "vlm"]) != 0
    assert "The kinds of servers are openrouter, " in capsys.readouterr().err


async def test_inspect_reports_on_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    async with running([{"output": "hi"}]) as server:
        assert await asyncio.to_thread(main, ["inspect", server.url, "--upstream-kind", "vllm"]) == 0
        text = capsys.readouterr().out
        assert re.search(r"^kind +vllm$", text, re.MULTILINE)
        assert re.search(r"^model +scripted$", text, re.MULTILINE)
        assert re.search(r"^chat template +missing +give one", text, re.MULTILINE)
        assert re.search(r"^temperature +works +passed on$", text, re.MULTILINE)
        assert re.search(r"^typical_p +refused +by its name$", text, re.MULTILINE)

        assert await asyncio.to_thread(main, ["inspect", server.url, "--json"]) == 0
        out = capsys.readouterr().out  # with what the server logs
        report, _ = json.JSONDecoder().raw_decode(out, out.index("{\n"))
        assert report["kind"] == "chat"
        assert {"name": "seed", "state": "works", "how": "passed on"} in report["features"]

        assert await asyncio.to_thread(main, ["inspect", "http://127.0.0.1:1"]) == 1
        assert "No server can be reached at http://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("error", [EngineError("no model\nat x.gguf"), NotFoundError("no model at x.gguf")])
def test_a_start_that_fails_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def serve(_settings: Settings) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=serve))
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "antiphon: No model at x.gguf\n"


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(_settings: Settings) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=serve))
    assert main(["serve"]) == 130


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(_settings: Settings) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=serve))
    with pytest.raises(ZeroDivisionError):
        main(["serve"])


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)  # noqa: S603


ENTRY = "import sys; from antiphon.cli import main; sys.exit(main())"


def test_the_entry_point() -> None:
    done = run(ENTRY, "--help")
    assert done.returncode == 0
    assert "serve" in done.stdout
    assert done.stderr == ""


def test_the_entry_point_refuses() -> None:
    done = run(ENTRY, "serve", "--port", "x")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ['antiphon: Invalid value for --port: unable to convert "x" into int.']


def test_a_reader_that_left_is_no_traceback() -> None:
    closed = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1);"
    done = run(
        closed
        + "import antiphon.chat as chat; chat.ask_once = lambda *_: print('x' * 99999, flush=True);"
        + ENTRY,
        "chat",
        "hi",
    )
    assert done.returncode == 1
    assert done.stderr == ""


COMPLETING = {
    "bash": """
        source "$1/_antiphon"
        complete -p antiphon | grep --quiet -- "-o default"  # what has no choices is a file
        COMP_WORDS=($2); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _antiphon; echo "${COMPREPLY[@]}"
    """,
    "zsh": """
        zmodload zsh/zpty
        zpty z zsh -f -i
        zpty -w z "fpath=($1 \\$fpath); autoload -Uz compinit; compinit -u -D; PS1=; print REA''DY"
        zpty -r z out '*READY*'
        zpty -w -n z "$2"$'\\t'
        zpty -r z out "*$3*"
        print -r -- "$out"
        zpty -d z
    """,
    "fish": """
        source $argv[1]/_antiphon
        complete -C "$argv[2]"
    """,
}
"""How each shell completes `$2` by the script in the folder `$1`; zsh waits for `$3`."""


COMPLETED = {
    "antiphon se": "serve",
    "antiphon serve --otlp-e": "--otlp-endpoint",
    "antiphon serve --log-level i": "info",
    "antiphon completion b": "bash",
    "antiphon doc": "doctor",
    "antiphon doctor --log-level w": "warning",
    "antiphon lau": "launch",
}


@pytest.mark.parametrize("shell", COMPLETING)
def test_shells_complete_commands_options_and_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert main(["completion", shell]) == 0
    (tmp_path / "_antiphon").write_text(capsys.readouterr().out)
    (tmp_path / "script").write_text(COMPLETING[shell])
    (tmp_path / "small-model.gguf").touch()
    files = {} if shell == "bash" else {"antiphon serve sma": "small-model.gguf"}  # which readline completes
    for typed, completed in (COMPLETED | files).items():
        given = [shell, "script", tmp_path, typed, completed]
        done = subprocess.run(  # noqa: S603
            given, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
        )
        assert completed in done.stdout
        assert done.stderr == ""


def test_inspect_prints_the_template_on_demand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "some.jinja"
    path.write_text(TAGS)
    assert main(["inspect", str(path), "--template"]) == 0
    assert TAGS.strip() in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["template"] is None


def test_demo_plays_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[Settings, object]] = []
    server = SimpleNamespace(serve=lambda *given: served.append(given))
    monkeypatch.setitem(sys.modules, "antiphon.http.server", server)
    assert main(["demo", "--port", "0"]) == 0
    ((settings, greeting),) = served
    assert (settings.port, settings.store, settings.model.model_name) == (0, "memory", ("demo",))
    assert greeting is demo.greeting
