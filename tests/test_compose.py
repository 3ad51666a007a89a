"""What is found out before a model is loaded, and in which order a server starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from antiphon import compose
from antiphon.config import Settings
from antiphon.core.errors import AntiphonError, EngineBusyError, StoreUnavailableError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.scripted import Options, ScriptedEngine
from antiphon.store.open import open_store
from antiphon.toolkits.registry import find
from tests.contracts.engine import Collected
from tests.server import MODEL_OPTIONS, settings_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    script = tmp_path / "script.jsonl"
    script.write_text('{"output": "Hi"}')
    return settings_of(engine=Options(script=script), store="memory", dialect="hermes")


def changed(settings: Settings, **changes: Any) -> Settings:
    """The settings with these changes, some of which may be of the model."""
    model = {name: changes.pop(name) for name in [*changes] if name in MODEL_OPTIONS}
    return replace(settings, model=replace(settings.model, **model), **changes)


def away() -> StoreUnavailableError:
    error = StoreUnavailableError()
    error.__cause__ = ConnectionRefusedError("nobody listens")
    return error


async def test_a_database_that_is_not_there_yet_is_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    async def opened(*given: Any) -> object:
        tries.append(given)
        if len(tries) < 3:
            raise away()
        return await open_store(*given)

    monkeypatch.setattr(compose, "open_store", opened)
    monkeypatch.setattr(compose, "RETRY_SECONDS", 0)
    runtime = compose.compose(settings)
    with capture_logs() as lines:
        await runtime.start()
    await runtime.app.models.stop()
    await runtime.stop()
    waits = [line for line in lines if line["event"] == "waiting for the database"]
    assert [line["why"] for line in waits] == ["nobody listens"] * 2


async def test_it_is_not_waited_for_without_end_nor_is_a_model_loaded_before(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(*_: Any) -> object:
        raise away()

    async def start(_: object) -> None:
        pytest.fail("the model is loaded")

    monkeypatch.setattr(compose, "open_store", opened)
    monkeypatch.setattr(compose, "STORE_SECONDS", 0)
    monkeypatch.setattr(ScriptedEngine, "start", start)
    runtime = compose.compose(settings)
    with pytest.raises(AntiphonError, match=r"Cannot open the store: nobody listens\. Choose another"):
        await runtime.start()
    await runtime.stop()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dialect": "nope"}, "no dialect 'nope'"),
        ({"chat_template": Path("nope")}, "Cannot read the chat template nope"),
        ({"keys": Path("nope")}, "Cannot read the keys in nope"),
    ],
)
def test_wrong_options_are_told_before_files_of_models_are_looked_for(
    settings: Settings, wrong: dict[str, Any], says: str
) -> None:
    """They may have to be downloaded first."""

    class Untouched(Options):
        def build(self, limits: Limits = DEFAULTS) -> ScriptedEngine:
            pytest.fail("the engine is built")

    settings = changed(settings, engine=Untouched(script=Path("none")), **wrong)
    with pytest.raises(AntiphonError) as raised:
        compose.compose(settings)
    assert says.lower() in str(raised.value).lower()


@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ("/none/sandbox sh", "/none/sandbox: No such file or directory"),
        ("sh -c 'echo no namespaces >&2; exit 3'", "it ends with code 3: no namespaces. Give a command"),
    ],
)
async def test_a_shell_is_tried_before_a_model_is_loaded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, shell: str, says: str
) -> None:
    async def start(_: object) -> None:
        pytest.fail("the model is loaded")

    monkeypatch.setattr(ScriptedEngine, "start", start)
    runtime = compose.compose(replace(settings, tools={"shell": find("shell").options(shell=shell)}))
    with pytest.raises(AntiphonError, match="--shell cannot be used") as error:
        await runtime.start()
    assert says in error.value.message
    await runtime.stop()


async def test_a_search_engine_that_does_not_answer_yet_is_a_warning(settings: Settings) -> None:
    runtime = compose.compose(
        replace(settings, tools={"web_search": find("web_search").options(web_search="http://127.0.0.1:9")})
    )
    with capture_logs() as lines:
        await runtime.start()
    await runtime.app.models.stop()
    await runtime.stop()
    assert "--web-search does not work yet" in [line["event"] for line in lines]


def test_a_dialect_that_does_not_exist_is_told_before_a_model_is_loaded(settings: Settings) -> None:
    with pytest.raises(AntiphonError, match="There is no dialect 'hermse'"):
        compose.compose(changed(settings, dialect="hermse"))
    compose.compose(changed(settings, dialect="think+hf"))


class Remembering(Options):
    """Remembers the engines that were built."""

    built: ClassVar[list[ScriptedEngine]] = []

    def build(self, limits: Limits = DEFAULTS) -> ScriptedEngine:
        self.built.append(super().build(limits))
        return self.built[-1]


async def test_the_limits_of_a_server_are_those_of_its_engines(settings: Settings) -> None:
    options = Remembering(script=settings.engine.script, parallel=1)  # type: ignore[attr-defined]
    compose.compose(replace(settings, limit=Limits(waiting=1), engine=options))
    [engine] = Remembering.built
    await engine.start()
    asked, refused = GenerationRequest(Prompt("Q", (1,)), 9), Collected()
    for receiver in (Collected(), Collected(), refused):
        engine.generate(asked, receiver)
    with pytest.raises(EngineBusyError):
        await refused.whole()
    await engine.stop()
