"""Options of the server: where they come from, which source wins, what is refused."""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, make_dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from antiphon.cli import main
from antiphon.config import Settings
from antiphon.core.errors import EngineError
from antiphon.core.limits import Limits
from antiphon.engines import llama_cpp, registry, scripted, upstream, vllm
from antiphon.model_tables import KeepLoaded
from antiphon.option_sources import option_names, unread_variables
from antiphon.toolkits.registry import default_options
from tests.rows import every_row
from tests.server import settings_of
from tests.toolkits import dice

Serve = Callable[..., Settings]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Runs `antiphon serve` with a server that only notes its settings; gives them."""
    noted: list[Settings] = []
    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=noted.append))
    monkeypatch.setitem(sys.modules, "antiphon.supervisor", SimpleNamespace(supervise=noted.append))

    def run(*tokens: object) -> Settings:
        assert main(["serve", *map(str, tokens)]) == 0
        return noted.pop()

    return run


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `antiphon serve` with a bad option; gives the one line that it says."""
    server = SimpleNamespace(serve=lambda settings: pytest.fail(f"served {settings}"))
    monkeypatch.setitem(sys.modules, "antiphon.http.server", server)

    def run(*tokens: object) -> str:
        assert main(["serve", *map(str, tokens)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("antiphon: ")
        assert err.count("\n") == 1
        return err

    return run


def test_defaults(serve: Serve) -> None:
    assert serve() == Settings()
    assert Settings().host == "127.0.0.1"
    assert Settings().port == 8000
    assert Settings().api_key == ()


def test_command_line(serve: Serve) -> None:
    settings = serve(
        *("m.gguf", "--port", 0, "--model-name", "a", "--model-name", "b", "--context", 512),
        *("--engine", "llama_cpp", "--log-level", "debug"),
        *("--api-key", "one", "--api-key", "two"),
    )
    assert settings == settings_of(
        port=0,
        model_name=("a", "b"),
        engine=llama_cpp.Options("m.gguf", context=512),
        log_level="debug",
        api_key=("one", "two"),
    )


@pytest.mark.parametrize("options", [["--engine", "scripted"], ["--engine=scripted"], []])
def test_each_engine_has_its_options(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    if not options:
        monkeypatch.setenv("ANTIPHON_ENGINE", "scripted")
    settings = serve(*options, "--script", "s.jsonl", "--context", "9")
    assert settings == settings_of(engine=scripted.Options(script=Path("s.jsonl"), context=9))


def test_a_file_may_name_the_engine(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text('engine = "scripted"\nscript = "s.jsonl"\nport = 1\n')
    settings = serve("--config", file, "--parallel", 3)
    assert settings == settings_of(
        port=1, config=file, engine=scripted.Options(script=tmp_path / "s.jsonl", parallel=3)
    )
    assert serve("--config", file, "--engine", "scripted").port == 1


def test_the_model_may_be_an_option(serve: Serve) -> None:
    assert serve("--model", "m.gguf").engine == serve("m.gguf").engine == llama_cpp.Options("m.gguf")


def test_the_engines_are_those_with_options() -> None:
    assert list(registry.names()) == ["llama_cpp", "scripted", "upstream", "vllm"]


def test_options_that_cannot_be_used_are_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    for options in (llama_cpp.Options(str(tmp_path / "none")), scripted.Options(script=tmp_path / "none")):
        with pytest.raises(EngineError, match="none"):
            options.build()


def test_command_line_then_environment_then_file_then_default(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text('host = "file"\nport = 1\nparallel = 1\nmodel_name = ["file"]\n')
    monkeypatch.setenv("ANTIPHON_CONFIG", str(file))
    monkeypatch.setenv("ANTIPHON_PORT", "2")
    monkeypatch.setenv("ANTIPHON_PARALLEL", "2")
    monkeypatch.setenv("ANTIPHON_MODEL_NAME", "env")
    settings = serve("--parallel", 3, "--model-name", "cli")
    assert (settings.host, settings.port) == ("file", 2)
    assert settings.engine == llama_cpp.Options(parallel=3)
    assert settings.model.model_name == ("cli",)  # a list is replaced, not added to
    assert settings.stall_seconds == Settings().stall_seconds


SAMPLES = {
    "host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104
    "port": ("81", 81),
    "model_name": ("a b", ("a", "b")),
    "dialect": ("hermes", "hermes"),
    "reasoning_tags": ("<a> </a>", ("<a>", "</a>")),
    "chat_template": ("/t.jinja", Path("/t.jinja")),
    "api_key": ("one two", ("one", "two")),
    "date": ("2026-11-21", "2026-11-21"),
    "store": ("memory", "memory"),
    "keep_days": ("1.5", 1.5),
    "jobs": ("3", 3),
    "lease_seconds": ("6.5", 6.5),
    "durable_streams": ("true", True),
    "resume_streams": ("false", False),
    "secret": ("three four", ("three", "four")),
    "reasoning_field": ("reasoning", "reasoning"),
    "reasoning_events": ("open-responses", "open-responses"),
    "code_interpreter": ("true", True),
    "codex_instructions": ("/a/codex.md", Path("/a/codex.md")),
    "programs": ("true", True),
    "python": ("/opt/science/bin/python", "/opt/science/bin/python"),
    "python_sandbox": ("bwrap --", "bwrap --"),
    "mcp_host": ("a b:1", ("a", "b:1")),
    "search_embeddings": ("embedder", "embedder"),
    "moderation": ("guard", "guard"),
    "moderation_format": ("shieldgemma", "shieldgemma"),
    "moderation_window": ("64", 64),
    "web_search": ("http://127.0.0.1:8888", "http://127.0.0.1:8888"),
    "web_search_key": ("secret", "secret"),
    "shell": ("bwrap sh", "bwrap sh"),
    "default_model": ("a", "a"),
    "keep_loaded": ("2GiB", KeepLoaded(memory=2**31)),
    "public_metrics": ("true", True),
    "keys": ("/a/keys.toml", Path("/a/keys.toml")),
    "processes": ("4", 4),
    "unix_socket": ("/run/a.sock", Path("/run/a.sock")),
    "tls_certificate": ("/tls.pem", Path("/tls.pem")),
    "tls_key": ("/tls.key", Path("/tls.key")),
    "root_path": ("/llm", "/llm"),
    "trusted_proxy": ("10.0.0.1 ::1", ("10.0.0.1", "::1")),
    "allow_host": ("a.example *", ("a.example", "*")),
    "allow_origin": ("https://a.example *", ("https://a.example", "*")),
    "drain_seconds": ("2.5", 2.5),
    "max_tokens": ("99", 99),
    "admin_key": ("five six", ("five", "six")),
    "media_fallback": ("note", "note"),
    "media_domain": ("a.example b.example", ("a.example", "b.example")),
    "exclude_tools_when_tool_choice_none": ("true", True),
    "trust_chat_templates": ("true", True),
    "force_include_usage": ("true", True),
    "return_tokens_as_token_ids": ("true", True),
    "chat_template_content_format": ("openai", "openai"),
    "sampling": ("temperature=0.5 top_p=1", {"temperature": 0.5, "top_p": 1}),
    "force_sampling": ("seed=3", {"seed": 3}),
    "variable": ("shade=blue", {"shade": "blue"}),
    "force_variable": ("enable_thinking=false", {"enable_thinking": False}),
    "decision_prefill": ("(", "("),
    "decision_orders": ("3", 3),
    "calibration": ("/c.json", Path("/c.json")),
    "keep_alive": ("3.5", 3.5),
    "keep_alive_events": ("false", False),
    "stall_seconds": ("4.5", 4.5),
    "deadline_seconds": ("5.5", 5.5),
    "limit": ("tools=5 items=6", Limits(tools=5, items=6)),
    "log_level": ("error", "error"),
    "log_format": ("json", "json"),
    "log_content": ("true", True),
    "debug_answers": ("20", 20),
    "otlp_endpoint": ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
}


ENGINE_SAMPLES = {
    "model": ("llama_cpp", "hf:org/repo", "hf:org/repo"),
    "threads": ("llama_cpp", "2", 2),
    "parallel": ("llama_cpp", "9", 9),
    "context": ("llama_cpp", "77", 77),
    "gpu_layers": ("llama_cpp", "3", 3),
    "kv_type": ("llama_cpp", "q8_0", "q8_0"),
    "flash_attention": ("llama_cpp", "on", "on"),
    "draft": ("llama_cpp", "ngram", "ngram"),
    "draft_tokens": ("llama_cpp", "5", 5),
    "mmproj": ("llama_cpp", "none", "none"),
    "script": ("scripted", "/s.jsonl", Path("/s.jsonl")),
    "upstream_kind": ("upstream", "vllm", "vllm"),
    "upstream_model": ("upstream", "qwen", "qwen"),
    "upstream_key": ("upstream", "key", "key"),
    "tokenizer": ("upstream", "folder", "folder"),
    "replica": ("upstream", "http://a:1 http://b:2", ("http://a:1", "http://b:2")),
    "kv_events": ("upstream", "tcp://*:1,tcp://*:2", "tcp://*:1,tcp://*:2"),
    "connect_seconds": ("upstream", "2.5", 2.5),
    "idle_seconds": ("upstream", "30", 30.0),
    "task": ("upstream", "embed", "embed"),
    "vllm": ("vllm", "tensor_parallel_size=2", ("tensor_parallel_size=2",)),
    "vllm_untested": ("vllm", "true", True),
}

REQUIRED = {"upstream": ["http://127.0.0.1:1"], "vllm": ["org/model"]}
"""What is on the command line of an engine that cannot do without."""

ENGINES = {
    engine: {name: (text, value) for name, (of, text, value) in ENGINE_SAMPLES.items() if of == engine}
    for engine in ("llama_cpp", "scripted", "upstream", "vllm")
}

NAMES = sorted(SAMPLES)


def test_every_option_is_tested() -> None:
    every_row(
        SAMPLES, option_names(*Settings().option_tables) - {"config"}, "SAMPLES in tests/test_config.py"
    )


@pytest.mark.parametrize("name", [name for name, (_, value) in SAMPLES.items() if value is False])
def test_what_is_on_by_default_is_turned_off_by_its_name(serve: Serve, name: str) -> None:
    assert set_of(serve(f"--no-{name.replace('_', '-')}"), [name]) == {name: False}


def test_every_option_of_an_engine_is_tested() -> None:
    options = {field.name for each in (llama_cpp, scripted, upstream, vllm) for field in fields(each.Options)}
    every_row(ENGINE_SAMPLES, options, "ENGINE_SAMPLES in tests/test_config.py")


# All at once, each with a value of its own: to read the command line takes 50 ms.


def set_of(settings: Settings, names: Iterable[str]) -> dict[str, object]:
    """The values of options of the server, its model, or its tools."""
    values = {}
    for table in (settings, settings.model, *settings.tools.values()):
        values |= vars(table)
    return {name: values[name] for name in names}


def set_of_engine(options: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(options, name) for name in names}


def test_every_option_has_a_variable(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(f"ANTIPHON_{name.upper()}", SAMPLES[name][0])
    assert set_of(serve(), NAMES) == {name: SAMPLES[name][1] for name in NAMES}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_of_an_engine_has_a_variable(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("ANTIPHON_ENGINE", engine)
    for name, (text, _) in ENGINES[engine].items():
        monkeypatch.setenv(f"ANTIPHON_{name.upper()}", text)
    options = serve(*REQUIRED.get(engine, [])).engine
    assert set_of_engine(options, ENGINES[engine]) == {
        name: value for name, (_, value) in ENGINES[engine].items()
    }


@pytest.mark.parametrize("dashes", [False, True])
def test_every_option_has_a_toml_key(serve: Serve, tmp_path: Path, dashes: bool) -> None:
    lines = [f"{name.replace('_', '-') if dashes else name} = {toml_of(*SAMPLES[name])}\n" for name in NAMES]
    file = tmp_path / "a.toml"
    file.write_text("".join(lines))
    assert set_of(serve("--config", file), NAMES) == {name: SAMPLES[name][1] for name in NAMES}


def test_an_empty_list_of_a_file_sets_nothing(serve: Serve, tmp_path: Path) -> None:
    names = [name for name in NAMES if toml_of(*SAMPLES[name]).startswith("[")]
    file = tmp_path / "a.toml"
    file.write_text("".join(f"{name} = []\n" for name in names))
    assert set_of(serve("--config", file), names) == set_of(serve(), names)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_of_an_engine_has_a_toml_key(serve: Serve, tmp_path: Path, engine: str) -> None:
    values = {name: value for name, (_, value) in ENGINES[engine].items()}
    lines = [f"{name} = {toml_of(*sample)}\n" for name, sample in ENGINES[engine].items()]
    file = tmp_path / "a.toml"
    file.write_text("".join([f'engine = "{engine}"\n', *lines]))
    assert set_of_engine(serve("--config", file, *REQUIRED.get(engine, [])).engine, values) == values


def toml_of(text: str, value: object) -> str:
    match value:
        case tuple() | dict() | Limits():  # of an option that may be repeated
            return str(text.split())
        case int() | float():
            return str(value).lower()
        case _:
            return f'"{text}"'


@pytest.mark.parametrize(
    ("tokens", "engine"),
    [
        (["http://127.0.0.1:8080"], upstream.Options("http://127.0.0.1:8080")),
        (["--port", "9", "https://gpu/v1"], upstream.Options("https://gpu/v1")),
        (["--upstream-kind", "vllm", "http://gpu"], upstream.Options("http://gpu", upstream_kind="vllm")),
        (["--web-search", "http://127.0.0.1:8888", "m.gguf"], llama_cpp.Options("m.gguf")),
        (["m.gguf"], llama_cpp.Options("m.gguf")),
        (["models/m.gguf"], llama_cpp.Options("models/m.gguf")),
        (["hf:org/model"], llama_cpp.Options("hf:org/model")),
        (["org/model"], vllm.Options("org/model")),
        (
            ["--vllm", "seed=1", "--vllm=dtype=auto", "org/m"],
            vllm.Options("org/m", vllm=("seed=1", "dtype=auto")),
        ),
        (["--tokenizer", "org/model", "http://gpu"], upstream.Options("http://gpu", tokenizer="org/model")),
        ([], llama_cpp.Options()),
    ],
)
def test_the_model_chooses_the_engine(serve: Serve, tokens: list[str], engine: object) -> None:
    assert serve(*tokens).engine == engine


def test_a_folder_of_safetensors_chooses_vllm(serve: Serve, tmp_path: Path) -> None:
    assert serve(tmp_path).engine == llama_cpp.Options(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert serve(tmp_path).engine == vllm.Options(str(tmp_path))


def test_the_model_chooses_the_engine_wherever_it_comes_from(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    file.write_text('model = "http://gpu"\n')
    assert serve("--config", file).engine == upstream.Options("http://gpu")
    monkeypatch.setenv("ANTIPHON_MODEL", "http://other")
    assert serve("--config", file).engine == upstream.Options("http://other")


def test_foreign_variables_are_no_options(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kubernetes sets such variables for a service called antiphon.
    monkeypatch.setenv("ANTIPHON_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("ANTIPHON_PORT_8000_TCP", "tcp://10.0.0.1:8000")
    assert serve() == Settings()


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (["--port", "99999"], "99999"),
        (["--port", "-1"], "-1"),
        (["--port", "http"], "--port"),
        (["--prot", "1"], "--port"),
        (["--engine", "none"], '"llama_cpp", "scripted", "upstream", "vllm"'),
        (["--engine", "json"], "json"),  # a module, but no engine
        (["--engine", "no.such.module"], "no.such.module"),
        (["--engine", ".."], "There is no engine"),
        (["--engine", "scripted"], "--script"),
        (
            ["--engine", "scripted", "--script", "a", "--threads", "1"],
            "--threads is an option of the engine llama_cpp",
        ),
        (["--script", "a"], "and this is llama_cpp. Leave it out, or choose the other: --engine scripted"),
        (["--engine", "scripted", "--script", "a", "m.gguf"], "m.gguf"),
        (["--parallel", "0"], "--parallel"),
        (["--context", "0"], "--context"),
        (["--limit", "tools=0"], "NAME=NUMBER"),
        (["--root-path", "llm"], "/llm"),
        (["--root-path", "/llm/"], "/llm"),
        (["--allow-host", "llm.example.com:8000"], "without a port"),
        (["--allow-host", "https://llm.example.com"], "llm.example.com"),
        (["--allow-origin", "chat.example.com"], "https://chat.example.com"),
        (["--allow-origin", "https://chat.example.com/"], "https://chat.example.com"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--limit", "tools"], 'value "tools" for --limit. A limit is written NAME=NUMBER'),
        (["--limit", "tool=1"], "no limit 'tool'"),
        (["--log-level", "loud"], "loud"),
        (["a.gguf", "b.gguf"], "Too many arguments: b.gguf. See --help."),
        (["--api-key", ""], "--api-key"),
    ],
)
def test_bad_option(refused: Callable[..., str], tokens: list[str], says: str) -> None:
    assert says in refused(*tokens)


def test_bad_variable(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PORT", "tcp://10.0.0.1:8000")
    assert "ANTIPHON_PORT" in refused()


def test_a_variable_with_too_few_texts(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_REASONING_TAGS", "<think>")
    assert "ANTIPHON_REASONING_TAGS" in refused()


@pytest.mark.parametrize(
    ("option", "blank"),
    [("port", " "), *((option, "") for option in [*NAMES, "engine", "tool", "config", *ENGINE_SAMPLES])],
)
def test_an_empty_variable_is_refused(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, option: str, blank: str
) -> None:
    name = f"ANTIPHON_{option.upper()}"
    required = []
    if option in ENGINE_SAMPLES:
        monkeypatch.setenv("ANTIPHON_ENGINE", ENGINE_SAMPLES[option][0])
        required = REQUIRED.get(ENGINE_SAMPLES[option][0], [])
    monkeypatch.setenv(name, blank)
    assert name in refused(*required)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('reasoning_tags = ["a"]\n', "[reasoning_tags] provided by"),
        ('engines = ["a"]\n', 'Unknown option "engines" in'),
        ("tools = {a = 1}\n", 'Unknown option "tools" in'),
        ("prot = 1\n", '"prot" in'),
        ("prot = 1\n", "Did you mean port?"),
        ("version = 1\n", '"version"'),  # also the name of a command
        ("[serve]\nport = 1\n", '"serve"'),
        ('config = "other.toml"\n', '"config"'),
        (
            'model = "http://a"\ngpu-layers = 3\n',
            "is an option of the engine llama_cpp, which is not chosen.",
        ),
        ("port = [1, 2]\n", "[port]"),
        ('port = "x"\n', "[port]"),
        ("port = 70000\n", "70000"),
        ("port = \n", "line 1"),
        ('api_key = [""]\n', "[api_key]"),
    ],
)
def test_bad_file(refused: Callable[..., str], tmp_path: Path, toml: str, says: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(toml)
    assert says in refused("--config", file)


def test_an_unknown_key_names_the_file(refused: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("nonsense = 1\n")
    assert str(file) in refused("--config", file)


def test_files_that_cannot_be_read(refused: Callable[..., str], tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, binary):
        assert str(path) in refused("--config", path)
        assert str(path) in refused("--api-key", f"@{path}")


def test_key_file(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two \r\n")
    assert serve("--api-key", f"@{file}", "--api-key", "three").api_key == ("one", "two", "three")


def test_a_key_file_with_a_wrong_key_says_where(refused: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("good\n\nnot good\n")
    says = refused("--api-key", f"@{file}")
    assert f"line 3 of {file}" in says
    assert "not good" not in says


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_key_file_without_keys_is_refused(refused: Callable[..., str], tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    assert str(file) in refused("--api-key", f"@{file}")


@pytest.mark.parametrize("key", ["secret key", "secrët", "secret\x01"])
def test_a_key_that_no_client_can_send_is_refused(
    refused: Callable[..., str], tmp_path: Path, key: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(key)
    for error in (refused("--api-key", key), refused("--api-key", f"@{file}")):
        assert "secr" not in error


def test_settings_do_not_show_keys() -> None:
    assert "secret" not in repr(Settings(api_key=("secret",)))


def test_mcp_servers_are_tables_of_the_file(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[[mcp_servers]]\nlabel = "files"\ncommand = "npx files"\nkeys = ["k"]\n')

    [server] = serve("--config", str(file)).mcp_servers

    assert (server.label, server.words, server.keys) == ("files", ("npx", "files"), ["k"])


def test_mcp_servers_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[[mcp_servers]]\nlabel = "files"\n')

    assert main(["serve", "--config", str(file)]) == 2
    assert "either a url or a command" in capsys.readouterr().err


def test_paths_in_a_file_are_taken_from_its_folder(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "etc"
    (folder / "mine").mkdir(parents=True)
    (folder / "keys").write_text("k\n")
    (folder / "a.toml").write_text(
        'model = "x.gguf"\ndraft = "~/d.gguf"\nchat_template = "t.jinja"\nstore = "sqlite:///s.db"\n'
        'api_key = ["@keys", "other"]\nlimit = ["files=3"]\n'
    )
    monkeypatch.chdir(tmp_path)
    found = serve("--config", "etc/a.toml")
    assert found.engine == llama_cpp.Options(str(folder / "x.gguf"), draft=str(Path("~/d.gguf").expanduser()))
    assert (found.model.chat_template, found.store) == (folder / "t.jinja", f"sqlite:///{folder}/s.db")
    assert found.api_key == ("k", "other")


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("hf:org/repo", "hf:org/repo"),
        ("org/repo", "org/repo"),
        ("sub/x.gguf", "{folder}/sub/x.gguf"),
        ("mine", "{folder}/mine"),  # it is there
        ("/x.gguf", "/x.gguf"),
        ("../x.gguf", "{folder}/../x.gguf"),
    ],
)
def test_a_model_in_a_file_may_be_a_name(serve: Serve, tmp_path: Path, said: str, means: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "x.gguf").touch()
    file = tmp_path / "a.toml"
    file.write_text(f'model = "{said}"\n')
    single = serve("--config", file).engine
    file.write_text(
        f'[[models]]\nname = "m"\nmodel = "{said}"\nchat_template = "chatml"\nadapters.a = "a.gguf"'
    )
    (table,) = serve("--config", file).models
    wanted = means.format(folder=tmp_path)
    assert [each.model for each in (single, *table.engines)] == [wanted, wanted]  # type: ignore[attr-defined]
    assert (table.chat_template, table.adapters) == (Path("chatml"), {"a": str(tmp_path / "a.gguf")})


def test_variables_that_nobody_reads_are_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROT", "SCRIPT", "MODELS", "URL", "HOST", "GPU_LAYERS", "ENGINE", "SERVICE_HOST"):
        monkeypatch.setenv(f"ANTIPHON_{name}", "llama_cpp" if name == "ENGINE" else "1")
    assert [*unread_variables(serve())] == [
        "ANTIPHON_MODELS is the variable of no option: it is not read. Did you mean ANTIPHON_MODEL?",
        "ANTIPHON_PROT is the variable of no option: it is not read. Did you mean ANTIPHON_PORT?",
        "ANTIPHON_SCRIPT is an option of the engine scripted: it is not read.",
    ]


# Tools of other packages

DICE = "tests.toolkits.dice"


def test_the_options_of_a_tool_of_another_package(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'tool = ["{DICE}"]\ndice_eyes = 5\n')

    assert serve("--tool", DICE).tools == {**default_options(), DICE: dice.Options()}
    assert serve("--tool", DICE, "--dice-eyes", 2).tools[DICE] == dice.Options(dice_eyes=2)
    assert serve("--config", file).tools[DICE] == dice.Options(dice_eyes=5)
    monkeypatch.setenv("ANTIPHON_TOOL", DICE)
    monkeypatch.setenv("ANTIPHON_DICE_EYES", "3")
    assert serve("--config", file).tools[DICE] == dice.Options(dice_eyes=3)
    assert serve("hf:org/repo").engine == llama_cpp.Options(model="hf:org/repo")
    assert [*unread_variables(serve())] == []


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (["--tool", "nowhere.tool"], 'There is no tool "nowhere.tool"'),
        (["--tool", "json"], 'There is no tool "json"'),
        (["--tool", "shell"], "shell comes with Antiphon"),
        (["--tool", DICE, "--dice-eyes", "0"], "--dice-eyes"),
        (["--dice-eyes", "4"], "Unknown option"),
    ],
)
def test_tools_that_make_no_sense_are_refused(
    refused: Callable[..., str], tokens: list[str], says: str
) -> None:
    assert says in refused(*tokens)


def test_the_options_of_tools_with_similar_names_are_apart(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, option in {"a_b": "first", "a.b": "second", "a": "third"}.items():
        options = make_dataclass("Options", [(option, str, "")], frozen=True)
        options.__module__ = name  # it is `types`, whose fields are no options
        module = ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.TOOLKIT = msgspec.structs.replace(  # type: ignore[attr-defined]
            dice.TOOLKIT, type=option, options=options
        )
        monkeypatch.setitem(sys.modules, name, module)
    names = ["--tool", "a", "--tool", "a.b", "--tool", "a_b"]
    tools = serve(*names, "--first", "1", "--second", "2").tools
    assert [vars(tools[name]) for name in ("a_b", "a.b", "a")] == [
        {"first": "1"},
        {"second": "2"},
        {"third": ""},
    ]


@pytest.mark.parametrize("option", ["port", "tool", "model", "gpu_layers", "web_search"])
def test_a_tool_whose_option_others_have_is_refused(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    other = make_dataclass("Other", [(option, str, "")], frozen=True)
    monkeypatch.setattr(dice, "TOOLKIT", msgspec.structs.replace(dice.TOOLKIT, options=other))
    dashed = option.replace("_", "-")
    assert f"The tool {DICE} has an option --{dashed}, which others have" in refused("--tool", DICE)
