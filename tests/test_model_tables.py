"""`[[models]]` in the TOML file: its values, and errors in it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon import option_sources
from antiphon.cli import main
from antiphon.compose import compose
from antiphon.config import Settings
from antiphon.core.errors import AntiphonError
from antiphon.engines import llama_cpp, registry, scripted, upstream, vllm
from antiphon.engines.pool import PoolEngine
from antiphon.engines.registry import engine_for
from antiphon.model_tables import KeepLoaded, ModelSettings
from tests.run.support import answered, fold, turn


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Settings]:
    """The settings of `antiphon serve` with this file."""
    noted: list[Settings] = []
    monkeypatch.setitem(sys.modules, "antiphon.http.server", SimpleNamespace(serve=noted.append))

    def run(text: str, *tokens: str) -> Settings:
        file = tmp_path / "antiphon.toml"
        file.write_text(text)
        assert main(["serve", "--config", str(file), *tokens]) == 0
        return noted.pop()

    return run


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `antiphon serve` says of this file, after its path."""

    def run(text: str, *tokens: str) -> str:
        file = tmp_path / "antiphon.toml"
        file.write_text(text)
        assert main(["serve", "--config", str(file), *tokens]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"antiphon: {file}")
        return said.partition("antiphon.toml")[2].strip(" ,\n")

    return run


FILE = """\
port = 1
default_model = "small"
keep_loaded = "8GiB"

[[models]]
name = "small"
aliases = ["gpt-*", "tiny"]
model = "/small.gguf"
context = 4096
kv-type = "q8_0"
dialect = "hermes"
chat_template = "chatml"
sampling = { temperature = 0.3, top_k = 20 }
force_sampling = { seed = 3 }
force_variables = { shade = "blue" }
chat_template_content_format = "string"

[models.variables]
enable_thinking = false
levels = [1, 2]

[models.adapters]
sql = "/sql.gguf"

[[models]]
name = "far"
model = "http://gpu:8000/v1"
upstream_kind = "vllm"

[[models]]
name = "played"
engine = "scripted"
script = "/s.jsonl"
"""


def test_each_table_is_a_model_with_its_own_options(serve: Callable[..., Settings]) -> None:
    settings = serve(FILE)
    small, far, played = settings.models

    assert small == ModelSettings(
        model_name=("small", "gpt-*", "tiny"),
        engines=(llama_cpp.Options("/small.gguf", context=4096, kv_type="q8_0"),),
        dialect="hermes",
        chat_template=Path("chatml"),
        sampling={"temperature": 0.3, "top_k": 20},
        variable={"enable_thinking": False, "levels": [1, 2]},
        adapters={"sql": "/sql.gguf"},
        force_sampling={"seed": 3},
        force_variable={"shade": "blue"},
        chat_template_content_format="string",
    )
    assert far.engines == (upstream.Options("http://gpu:8000/v1", upstream_kind="vllm"),)
    assert played.engines == (scripted.Options(script=Path("/s.jsonl")),)
    assert (settings.port, settings.default_model, settings.keep_loaded) == (
        1,
        "small",
        KeepLoaded(memory=2**33),
    )


def test_replicas_share_the_options_of_the_table(serve: Callable[..., Settings]) -> None:
    [model] = serve("""\
[[models]]
name = "m"
parallel = 8
replicas = ["http://a", { model = "http://b", parallel = 2 }]
""").models
    assert model.engines == (
        upstream.Options("http://a", parallel=8),
        upstream.Options("http://b", parallel=2),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = 3", ": models must be tables. Write [[models]] above each."),
        ("[[models]]\nmodel = 'x.gguf'", 'line 1: name: is missing. Write name = "…".'),
        ("[[models]]\nname = 'a'\ncontxt = 3", "line 3: contxt: there is no such key. Did you mean context?"),
        (
            "[[models]]\nname = 'a'\nname-s = 3\nx = 1",
            "line 3: name_s: there is no such key. Did you mean name?",
        ),
        (
            "[[models]]\nname = 'a'\nmodel = 'http://a'\ngpu-layers = 3",
            "line 4: gpu_layers: is an option of the engine llama_cpp, and this is upstream. Leave it out.",
        ),
        ("[[models]]\nname = 'a'\n\ncontext = 'x'", "line 4: context: Invalid value"),
        ("[[models]]\nname = ''", "line 2: name: Expected `str` of length >= 1."),
        ("[[models]]\nname = 'a'\naliases = 'b'", "line 3: aliases: Expected `array`, got `str`."),
        ("[[models]]\nname = 'a'\nengine = 'nothing'", 'line 3: engine: There is no engine "nothing".'),
        ("[[models]]\nname = 'a'\nengine = 'scripted'", "line 1: model: "),
        (
            "[[models]]\nname = 'a'\nsampling = { temperatur = 1 }",
            "line 3: temperatur: there is no such key of sampling. Did you mean temperature?",
        ),
        (
            "[[models]]\nname = 'a'\n[models.sampling]\ntop_p = 2",
            "line 4: top_p: Expected `float` <= 1.0.",
        ),
        (
            "[[models]]\nname = 'a'\n[[models]]\nname = 'b'\naliases = ['a']",
            'line 5: aliases: "a" is a name of the model "a" already. Choose another.',
        ),
        ("[[models]]\nname = 'a'\n[[models]]\nname = 'a'", 'line 4: name: "a" is a name of the model "a"'),
        ("models = [{ name = 'a', context = 0 }]", "table 1 of [[models]]: context: "),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_key(
    refused: Callable[..., str], text: str, said: str
) -> None:
    assert refused(text).startswith(said)


@pytest.mark.parametrize(
    "tokens", [("m.gguf",), ("--model-name", "x"), ("--context", "3"), ("--dialect", "x")]
)
def test_the_options_of_a_single_model_are_no_options_then(
    refused: Callable[..., str], tokens: tuple[str, ...]
) -> None:
    assert refused("[[models]]\nname = 'a'", *tokens).startswith("has [[models]], so give")


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        (None, "llama_cpp"),
        ("m.gguf", "llama_cpp"),
        ("folder/m.gguf", "llama_cpp"),
        ("hf:org/repo", "llama_cpp"),
        ("http://gpu:8000", "upstream"),
        ("https://gpu/v1", "upstream"),
        ("Qwen/Qwen3-8B", "vllm"),
    ],
)
def test_the_engine_fits_the_model(model: str | None, engine: str) -> None:
    assert engine_for(model) == engine


def test_the_engine_of_a_folder_is_found_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert engine_for(str(tmp_path)) == registry.SAFETENSORS
    (tmp_path / "model.safetensors").rename(tmp_path / "m.gguf")
    assert engine_for(str(tmp_path)) == registry.DEFAULT
    assert engine_for(str(tmp_path), ["vllm"]) == registry.DEFAULT  # which then refuses the option


@pytest.mark.parametrize(
    ("file", "options", "engine"),
    [
        (None, [], "llama_cpp"),
        (None, ["parallel", "no_such_option"], "llama_cpp"),
        (None, ["parallel", "vllm"], "vllm"),
        ("config.json", [], "vllm"),
        ("params.json", [], "vllm"),
    ],
)
def test_a_folder_without_weights_is_vllms_if_it_or_an_option_says_so(
    tmp_path: Path, file: str | None, options: list[str], engine: str
) -> None:
    if file is not None:
        (tmp_path / file).touch()
    assert engine_for(str(tmp_path), options) == engine


@pytest.mark.parametrize("place", ["command", "file", "environment"])
def test_an_option_of_vllms_says_whose_a_folder_is_wherever_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "model").mkdir()
    words = ["serve", str(tmp_path / "model")]
    if place == "command":
        words += ["--vllm", "load_format=dummy"]
    elif place == "file":
        (tmp_path / "a.toml").write_text('vllm = ["load_format=dummy"]')
        words += ["--config", str(tmp_path / "a.toml")]
    else:
        monkeypatch.setenv("ANTIPHON_VLLM", "load_format=dummy")
    captured: list[Settings] = []
    option_sources.command(words[1:], captured.append, None)(words[1:])
    assert isinstance(captured[0].engine, vllm.Options)
    assert captured[0].engine.vllm == ("load_format=dummy",)


# What is found before a model is loaded


def composed(serve: Callable[..., Settings], tmp_path: Path, text: str) -> str:
    """What is wrong with these models."""
    script = tmp_path / "s.jsonl"
    script.write_text('{"output": "Hi"}\n')
    with pytest.raises(AntiphonError) as raised:
        compose(serve('store = "memory"\n' + text.replace("SCRIPT", f'"{script}"')))
    return raised.value.message


SCRIPTED = '[[models]]\nname = "a"\nengine = "scripted"\nscript = SCRIPT\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[models]]\nname = "a"\nmodel = "/none.gguf"', "The model a: There is no model file /none.gguf"),
        (SCRIPTED + 'chat_template = "none"', "The model a: Cannot read the chat template none"),
        (
            SCRIPTED + 'adapters = { sql = "x" }',
            "The model a: The engine of this model does not support adapters",
        ),
        ('default_model = "b"\n' + SCRIPTED, "There is no model 'b' to answer by default. Use one of: a."),
        ('search_embeddings = "b"\n' + SCRIPTED, "There is no model 'b' to find texts by their meaning"),
        ('keep_loaded = "1MiB"\n[[models]]\nname = "a"', "The model a takes about "),
    ],
)
def test_models_that_cannot_be_are_refused_before_one_is_loaded(
    serve: Callable[..., Settings], tmp_path: Path, text: str, said: str
) -> None:
    assert composed(serve, tmp_path, text).startswith(said)


async def test_replicas_are_one_model(serve: Callable[..., Settings], tmp_path: Path) -> None:
    script = tmp_path / "s.jsonl"
    script.write_text('{"output": "Hi"}\n')
    table = (
        SCRIPTED.replace("SCRIPT", f'"{script}"') + 'dialect = "hermes"\nreplicas = [{}, { parallel = 3 }]\n'
    )
    models = compose(serve('store = "memory"\n' + table)).app.models
    for _ in range(2):  # it can be started again
        await models.start()
        assert fold((await answered(turn(), await models.model("a"))).events).text == "Hi"
        await models.stop()


@pytest.mark.parametrize(
    ("events", "replicas"),
    [
        ("auto", '["http://a", "http://b"]'),
        ("off", '["http://a", { model = "http://b", kv_events = "tcp://*:1" }]'),
        ("off", '[{ model = "http://a", kv_events = "auto" }, "http://b"]'),
        ("off", '["http://a", "http://b"]'),
    ],
)
def test_replicas_are_followed_by_their_events(
    serve: Callable[..., Settings], events: str, replicas: str
) -> None:
    pytest.importorskip("zmq", reason="the extra kv-events is not installed")
    table = f'store = "memory"\n[[models]]\nname = "m"\nkv_events = "{events}"\nreplicas = {replicas}\n'
    engine = compose(serve(table)).app.models._served[0]._engine
    assert isinstance(engine, PoolEngine)
    assert (engine._follow is not None) is ("kv_events" in replicas or events == "auto")


@pytest.mark.parametrize("value", ["0", "-1", "two", "8 Gigabytes", ""])
def test_how_much_is_kept_loaded_is_a_number_or_a_size(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", f"--keep-loaded={value}"]) == 2
    assert "keep-loaded" in capsys.readouterr().err
