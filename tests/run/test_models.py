"""Several models in one server: their names, and which of them are loaded."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.errors import (
    EngineError,
    EngineNotReadyError,
    ModelNotLoadedError,
    NotFoundError,
    RequestError,
)
from antiphon.core.limits import Limits
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.loading import ServedModel
from antiphon.run.models import KeepLoaded, Models
from tests.run.adapted import Adapted, Engine
from tests.run.support import answered, fold, turn, until
from tests.server import served_model


def served(engine: ScriptedEngine, *names: str, **options: Any) -> ServedModel:
    return served_model(engine, model_name=names, dialect="hermes", **options)


async def started(*engines: Engine, keep: KeepLoaded = KeepLoaded(), **options: Any) -> Models:  # noqa: B008
    """A model for each engine: a, b, c."""
    models = Models(
        [served(engine, name) for engine, name in zip(engines, "abc", strict=False)], keep=keep, **options
    )
    await models.start()
    return models


async def said(models: Models, name: str) -> str:
    return fold((await answered(turn(), await models.model(name))).events).text


ONE = KeepLoaded(models=1)


async def test_models_are_found_by_name_alias_and_pattern() -> None:
    first, second = Engine("first"), Engine("second")
    models = Models([served(first, "a", "x", "gpt-*"), served(second, "b", "claude-*")])
    await models.start()

    answers = {name: await said(models, name) for name in ("a", "x", "gpt-5", "b", "claude-opus")}

    assert answers == {"a": "first", "x": "first", "gpt-5": "first", "b": "second", "claude-opus": "second"}
    assert models.names == ("a", "x", "b")
    with pytest.raises(NotFoundError, match=r"a, x, b, gpt-\*, claude-\*"):
        await models.model("c")
    await models.stop()


async def test_a_name_is_no_longer_than_requests_may_have_it() -> None:
    """That of a served model, of the default, which a pattern may match, and of an adapter."""
    long = "x" * 9
    for model, default in (
        (served(Engine(), "a", long), None),
        (served(Engine(), "a", "x*"), long),
    ):
        with pytest.raises(EngineError, match="Use a shorter name, or --limit name_characters=9"):
            Models([model], default=default, limits=Limits(name_characters=8))
        Models([model], default=default, limits=Limits(name_characters=9))
    models = Models([served(Engine(), "a")], limits=Limits(name_characters=8))
    await models.start()
    with pytest.raises(RequestError, match="the limit 'name_characters'"):
        await models.load_adapter(long, "/adapter", None, again=False)
    await models.stop()


async def test_a_name_is_there_once() -> None:
    with pytest.raises(EngineError, match="Two models are called 'a'"):
        Models([served(Engine(), "a"), served(Engine(), "b", "a")])
    with pytest.raises(EngineError, match=r"no model 'c' to answer by default. Use one of: a, b"):
        Models([served(Engine(), "a"), served(Engine(), "b")], default="c")


async def test_the_default_model_answers_for_names_that_nobody_has() -> None:
    models = await started(Engine("first"), Engine("second"), default="b")

    assert await said(models, "gpt-5") == "second"
    assert models.default_name() == "b"
    assert (await started(Engine(), Engine())).default_name() == "a"


async def test_one_is_loaded_for_another_where_only_one_may_be() -> None:
    engines = Engine("first"), Engine("second")
    models = await started(*engines, keep=ONE)
    assert [engine.starts for engine in engines] == [1, 0]

    assert [await said(models, name) for name in "abba"] == ["first", "second", "second", "first"]

    assert ([engine.starts for engine in engines], [engine.stops for engine in engines]) == ([2, 1], [1, 1])
    await models.stop()


async def test_requests_at_once_for_several_models_are_all_answered() -> None:
    engines = Engine("first"), Engine("second"), Engine("third")
    models = await started(*engines, keep=ONE)

    answers = await asyncio.gather(*(said(models, name) for name in "abcabcabcccbbbaaa"))

    assert answers == [{"a": "first", "b": "second", "c": "third"}[name] for name in "abcabcabcccbbbaaa"]
    assert sum(engine.starts - engine.stops for engine in engines) == 1
    assert sum(engine.starts for engine in engines) <= 6, "it does not swap for each request"
    await models.stop()


async def test_what_is_under_way_is_not_cut_off_and_who_waits_comes_before_who_comes_later() -> None:
    first, second = Engine("first", delay_ms=1, tokens=100_000), Engine("second")
    models = await started(first, second, keep=ONE)
    running = asyncio.create_task(said(models, "a"))
    await until(lambda: first.steps > 2)
    waiting = asyncio.create_task(said(models, "b"))
    await asyncio.sleep(0.01)
    later = asyncio.create_task(said(models, "a"))
    await asyncio.sleep(0.01)
    assert (second.starts, first.stops, first.load.running) == (0, 0, 1)

    running.cancel()

    assert await waiting == "second"
    await until(lambda: first.starts == 2)
    later.cancel()
    await asyncio.gather(running, later, return_exceptions=True)
    await models.stop()


async def test_the_one_that_was_used_longest_ago_goes_and_bytes_count() -> None:
    engines = Engine(memory=40), Engine(memory=50), Engine(memory=30)
    models = await started(*engines, keep=KeepLoaded(memory=100))
    assert [engine.starts for engine in engines] == [1, 1, 0]
    await said(models, "b")
    await said(models, "a")

    await said(models, "c")

    assert [engine.stops for engine in engines] == [0, 1, 0]
    await models.stop()


async def test_models_of_other_servers_take_no_room() -> None:
    engines = Engine("first"), Engine("second", memory=0)
    models = await started(*engines, keep=ONE)

    assert [await said(models, name) for name in "abab"] == ["first", "second"] * 2
    assert [engine.starts for engine in engines] == [1, 1]


async def test_a_model_that_cannot_be_loaded_is_told_without_the_reason_and_tried_again() -> None:
    first, second = Engine("first"), Engine("second")
    models = await started(first, second, keep=ONE, retry_seconds=0)
    second.failure = EngineError("/secret/path is gone.")

    with capture_logs() as logs, pytest.raises(EngineError, match="'b' could not be loaded") as raised:
        await said(models, "b")

    assert "secret" not in raised.value.message
    assert any("secret" in str(entry.get("why")) for entry in logs)
    assert await said(models, "a") == "first"
    second.failure = None
    assert await said(models, "b") == "second"
    await models.stop()


async def test_a_model_that_could_not_be_loaded_frees_no_other_again_at_once() -> None:
    first, second = Engine("first"), Engine("second")
    models = await started(first, second, keep=ONE)
    second.failure = EngineError("It is gone.")
    with pytest.raises(EngineError, match="'b' could not be loaded"):
        await said(models, "b")
    assert await said(models, "a") == "first"
    stops = first.stops
    second.failure = None

    with pytest.raises(EngineError, match="'b' could not be loaded"):
        await said(models, "b")

    assert (first.stops, await said(models, "a")) == (stops, "first")
    await models.stop()


class OfFile(Engine):
    """An engine whose file may be missing; `state` is that of the file. `checks` counts."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.state = 0
        self.checks = 0
        self.missing: EngineError | None = None

    def file_state(self) -> int:
        return self.state

    async def check_files(self) -> None:
        self.checks += 1
        if self.missing is not None:
            raise self.missing


async def test_a_model_whose_file_is_missing_unloads_no_other_however_often_it_is_wanted() -> None:
    first, second = Engine("first"), OfFile("second")
    models = await started(first, second, keep=ONE)
    second.missing = EngineError("There is no /secret/path.")

    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(ModelNotLoadedError, match="'b' could not be loaded") as raised:
                await said(models, "b")
            assert "secret" not in raised.value.message
            assert 0 < (raised.value.retry_after or 0) <= 30
    assert (first.stops, second.starts, second.checks) == (0, 0, 1)
    assert [entry["why"] for entry in logs if entry["log_level"] == "error"] == ["There is no /secret/path."]
    second.missing = None
    second.state = 1  # it is there now
    assert await said(models, "b") == "second"
    assert first.stops == 1
    await models.stop()


async def test_a_model_is_checked_while_others_are_in_use() -> None:
    first, second = Engine("first", delay_ms=1, tokens=100_000), OfFile("second")
    models = await started(first, second, keep=ONE)
    second.missing = EngineError("It is gone.")
    running = asyncio.create_task(said(models, "a"))
    await until(lambda: first.steps > 2)
    with pytest.raises(ModelNotLoadedError):
        await said(models, "b")  # not after the other has ended
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await models.stop()


async def test_a_load_that_fails_at_last_is_not_tried_again_at_once_also_if_there_is_room() -> None:
    first, second = Engine("first"), OfFile("second")
    models = await started(first, second, keep=ONE)
    second.failure = EngineError("It does not fit.")
    with pytest.raises(ModelNotLoadedError):
        await said(models, "b")
    assert first.stops == 1  # that is known only now
    for _ in range(3):
        with pytest.raises(ModelNotLoadedError):
            await said(models, "b")  # nothing is loaded: there would be room
    assert (second.checks, second.starts) == (1, 0)
    assert await said(models, "a") == "first"
    await models.stop()


async def test_a_model_without_a_usable_template_does_not_stay_in_memory() -> None:
    first, second = Engine("first"), Engine("second")
    second.card = replace(second.card, chat_template="{{ nothing.at.all }}")
    models = await started(first, second, keep=ONE)
    with pytest.raises(ModelNotLoadedError):
        await said(models, "b")
    assert (second.starts, second.stops) == (1, 1)
    assert await said(models, "a") == "first"
    await models.stop()


async def test_waiting_for_a_load_has_an_end_and_who_left_is_not_waited_for() -> None:
    first, second = Engine("first", delay_ms=1, tokens=100_000), Engine("second")
    models = await started(first, second, keep=ONE, load_seconds=0.05)
    running = asyncio.create_task(said(models, "a"))
    await until(lambda: first.steps > 2)

    with pytest.raises(EngineNotReadyError, match="could not be loaded in time"):
        await said(models, "b")

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0)
    assert second.starts == 0
    assert models.loads.keys() == {"a"}
    await models.stop()


async def test_a_server_that_stops_ends_loads() -> None:
    first, second = Engine("first"), Engine("second")
    models = await started(first, second, keep=ONE)
    second.gate.clear()
    waiting = asyncio.create_task(said(models, "b"))
    await until(lambda: first.stops == 1)

    await models.stop()

    with pytest.raises((EngineNotReadyError, asyncio.CancelledError)):
        await waiting
    with pytest.raises(EngineNotReadyError):
        await models.model("a")


# Defaults


async def test_a_request_has_the_defaults_of_its_model_where_it_says_nothing() -> None:
    engine = Engine()
    engine.card = replace(engine.card, sampling={"temperature": 0.6, "top_k": 20, "top_p": 0.9})
    own = {"temperature": 0.3, "max_tokens": 7, "logit_bias": {5: 2.0}}
    models = Models([served(engine, "a", sampling=own, variable={"enable_thinking": False})])
    await models.start()
    model = await models.model("a")

    prepared = await model.prepare(turn(sampling=Sampling(top_p=0.5), variables={"x": 1}))

    sampling = prepared.request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.3, 20, 0.5)
    assert sampling.logit_bias == {5: 2.0}
    assert prepared.request.max_tokens == 7
    assert prepared.turn.variables == {"enable_thinking": False, "x": 1}
    assert model.card.defaults == {**own, "top_k": 20, "top_p": 0.9}


async def test_what_the_operator_forces_holds_for_every_request() -> None:
    forced = {"temperature": 0.3, "skip_special_tokens": False}
    one = served(Engine(), "a", force_sampling=forced, force_variable={"enable_thinking": False})
    models = Models([one])
    await models.start()
    model = await models.model("a")

    for given in (Sampling(), Sampling(temperature=1.0, top_p=0.5)):
        prepared = await model.prepare(turn(sampling=given, variables={"enable_thinking": True, "x": 1}))
        assert prepared.request.sampling == replace(given, **forced)
        assert prepared.turn.variables == {"enable_thinking": False, "x": 1}
    assert model.card.forced == forced.keys()


async def test_what_the_engine_cannot_do_is_no_default() -> None:
    engine = Engine()
    able = replace(engine.card.capabilities, sampling=frozenset({"temperature", "max_tokens"}))
    engine.card = replace(engine.card, sampling={"temperature": 0.6, "top_k": 20}, capabilities=able)
    models = Models([served(engine, "a")])
    await models.start()
    assert (await models.model("a")).card.defaults == {"temperature": 0.6}

    with pytest.raises(EngineError, match=r"model b does not support 'top_k'.*Leave it out"):
        await Models([served(engine, "b", sampling={"top_k": 3})]).start()
    with pytest.raises(EngineError, match=r"model c does not support 'top_k'.*Leave it out"):
        await Models([served(engine, "c", force_sampling={"top_k": 3})]).start()


# Adapters


async def adapted(**adapters: str) -> tuple[Models, Adapted]:
    engine = Adapted()
    models = Models([served(Engine(), "a"), served(engine, "b", adapters=adapters)])
    await models.start()
    return models, engine


async def test_an_adapter_is_a_model_of_its_own() -> None:
    models, engine = await adapted(sql="/sql.gguf")

    assert await said(models, "sql") == "Hi"
    assert await said(models, "b") == "Hi"

    assert [request.sampling.lora for request in engine.seen] == [(Adapter("sql"),), None]
    assert models.names == ("a", "b", "sql")
    entry = models.entry("sql")
    assert (entry.parent, entry.root) == ("b", "/sql.gguf")
    assert models.entry("b").parent is None


async def test_adapters_come_and_go() -> None:
    models, engine = await adapted()
    await models.load_adapter("sql", "/one", None, again=False)
    assert await said(models, "sql") == "Hi"
    with pytest.raises(RequestError, match="a model 'sql' already") as raised:
        await models.load_adapter("sql", "/two", None, again=False)
    assert raised.value.param == "lora_name"
    with pytest.raises(RequestError, match="a model 'a' already"):
        await models.load_adapter("a", "/two", None, again=True)
    await models.load_adapter("sql", "/two", "b", again=True)
    assert engine.adapters == {"sql": "/two"}
    with pytest.raises(RequestError, match="does not support adapters"):
        await models.load_adapter("x", "/two", "a", again=False)
    models.default = "b"  # answers requests for unknown models, which this is not
    with pytest.raises(NotFoundError, match="'nobody' does not exist") as raised:
        await models.load_adapter("x", "/two", "nobody", again=False)
    assert raised.value.param == "base_model_name"
    models.default = None

    await models.unload_adapter("sql")

    for gone in (models.model("sql"), models.unload_adapter("sql")):
        with pytest.raises(NotFoundError):
            await gone


async def test_adapters_of_an_engine_that_takes_none_are_refused_at_once() -> None:
    with pytest.raises(RequestError, match="does not support adapters"):
        served(Engine(), "a", adapters={"sql": "/sql.gguf"})


def sizes(*given: int) -> Sequence[int]:
    return given


@pytest.mark.parametrize(
    ("keep", "given", "allowed"),
    [
        ({}, sizes(5, 5, 5), True),
        ({"models": 2}, sizes(5, 5), True),
        ({"models": 2}, sizes(5, 5, 5), False),
        ({"memory": 10}, sizes(5, 5), True),
        ({"memory": 10}, sizes(5, 6), False),
        ({"memory": 10}, sizes(11), True),
    ],
)
def test_what_may_be_loaded(keep: Mapping[str, int], given: Sequence[int], allowed: bool) -> None:
    assert KeepLoaded(**keep).allows(given) is allowed
