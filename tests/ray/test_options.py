"""Keys of `antiphon.ray:app`: they are the options of `antiphon serve`, and wrong ones are refused before a deployment."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import AntiphonError
from antiphon.ray.options import REFUSED, Plan, read
from antiphon.ray.scaling import LOAD, by_load
from tests.test_config import ENGINES, SAMPLES, set_of, set_of_engine, toml_of

SEVERAL = {"model": "http://a:1", "store": "none", "secret": "secret"}
"""A server of which several replicas may run."""


def values(text: str, value: object) -> Any:
    """A value as a configuration in YAML has it: a list, a number, true."""
    return tomllib.loads(f"key = {toml_of(text, value)}")["key"]


def test_every_option_is_a_key() -> None:
    names = sorted(SAMPLES.keys() - REFUSED.keys())
    settings = read({name: values(*SAMPLES[name]) for name in names}).settings
    assert set_of(settings, names) == {name: SAMPLES[name][1] for name in names}


@pytest.mark.parametrize("engine", ["upstream", "vllm"])
def test_every_option_of_an_engine_is_a_key(engine: str) -> None:
    given = {name: values(*sample) for name, sample in ENGINES[engine].items()}
    settings = read({"model": "http://c:1", "engine": engine, **given}).settings
    assert set_of_engine(settings.engine, given) == {
        name: value for name, (_, value) in ENGINES[engine].items()
    }


def test_several_values_on_the_command_line_are_a_list() -> None:
    plan = read({"model": "http://a:1", "replica": '["http://b:1", "http://c:1"]', "root-path": "/llm"})
    assert plan.tokens == ("http://a:1", "--replica=http://b:1", "--replica=http://c:1", "--root-path=/llm")


def test_a_key_without_a_value_is_not_given() -> None:
    assert read({"model": None, "replicas": None}).tokens == ()


@pytest.mark.parametrize(
    ("args", "planned"),
    [
        ({}, (1, 1, 0, False)),
        ({"replicas": "3", **SEVERAL}, (3, 3, 0, False)),
        ({"replicas": 2, **SEVERAL, "store": "postgresql://db/a"}, (2, 2, 0, False)),
        ({"autoscale": "1..8", **SEVERAL}, (1, 8, 0, False)),
        ({"gpus": "0.5"}, (1, 1, 0.5, False)),
        ({"model": "org/model", "engine": "vllm"}, (1, 1, 1, False)),
        ({"model": "org/model", "engine": "vllm", "vllm": "tensor_parallel_size=4"}, (1, 1, 4, False)),
        (
            {
                "model": "org/model",
                "engine": "vllm",
                "vllm": [
                    "tensor_parallel_size=4",
                    "pipeline_parallel_size=2",
                    "distributed_executor_backend=ray",
                ],
            },
            (1, 1, 8, True),
        ),
    ],
)
def test_what_is_planned(args: dict[str, Any], planned: tuple[Any, ...]) -> None:
    plan = read(args)
    assert (plan.least, plan.most, plan.gpus, plan.spread) == planned


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"modle": "x"}, r"Unknown option: modle\. Did you mean model"),
        ({"replcas": 2}, r"Unknown option: replcas\. Did you mean replicas\?"),
        ({"port": 8000}, r"port: Ray's proxy listens .* http_options"),
        ({"tls_key": "/a.pem"}, r"tls_key: Ray's proxy listens"),
        ({"unix-socket": "/a.sock"}, r"unix_socket: Ray's proxy listens"),
        ({"processes": 2}, r"processes: .* replicas=N"),
        ({"help": "yes"}, r"help: `antiphon serve --help-all`"),
        ({"drain_seconds": "-1"}, r'"-1\.0" for drain_seconds\. Must be > 0'),
        ({"model": "http://a:1", "threads": 2}, r"threads is an option of the engine llama_cpp"),
        ({"model": {"a": 1}}, r"model: give a text"),
        ({"replica": "[broken"}, r"replica: write several values as JSON"),
        ({"replicas": 0}, r"replicas: give a whole number from 1"),
        ({"replicas": "1.5"}, r"replicas: give a whole number from 1"),
        ({"replicas": "two"}, r"replicas: give a number, not 'two'"),
        ({"autoscale": "8..1"}, r"autoscale: give the least and the largest number .* autoscale=1\.\.8"),
        ({"autoscale": "0..4"}, r"autoscale: give the least and the largest number"),
        ({"autoscale": "1..4", "replicas": 2}, r"replicas and autoscale exclude each other"),
        ({"gpus": "many"}, r"gpus: give a number, not 'many'"),
        ({"gpus": -1}, r"gpus: give a number from 0"),
        ({"model": "http://a:1", "replicas": 2}, r"store=postgresql://USER@HOST/DATABASE"),
        (
            {"model": "http://a:1", "replicas": 2, "store": "memory"},
            r"need a database that all of them reach",
        ),
        (
            {
                "model": "org/model",
                "engine": "vllm",
                "gpus": 2,
                "vllm": ["tensor_parallel_size=4", "distributed_executor_backend=ray"],
            },
            r"gpus: vLLM needs 4",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(args: dict[str, Any], why: str) -> None:
    with pytest.raises(AntiphonError, match=why):
        read(args)


def test_replicas_get_the_variables_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_STORE", "postgresql://db/a")
    monkeypatch.setenv("ANTIPHON_SECRET", "one two")
    monkeypatch.setenv("ANTIPHON_SERVICE_PORT", "80")  # of Kubernetes
    plan = read({"model": "http://a:1", "replicas": 2})
    assert plan.settings.store == "postgresql://db/a"
    assert plan.variables == {"ANTIPHON_STORE": "postgresql://db/a", "ANTIPHON_SECRET": "one two"}


def test_replicas_without_a_secret_share_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def plan(replicas: int) -> Plan:
        return read({"model": "http://a:1", "replicas": replicas, "store": "postgresql://db/a"})

    assert plan(2).variables == plan(3).variables
    assert set(plan(2).variables) == {"ANTIPHON_SECRET"}
    assert plan(1).variables == {}


class Context:
    """What Ray tells a policy."""

    def __init__(self, loads: dict[str, float], target: int = 3) -> None:
        self.aggregated_metrics = {LOAD: loads} if loads else {}
        self.target_num_replicas = target


@given(st.lists(st.floats(0, 20), min_size=1, max_size=20))
def test_replicas_are_as_many_as_hold_the_load(loads: list[float]) -> None:
    number, _ = by_load(Context({str(place): load for place, load in enumerate(loads)}))
    assert number >= 1
    assert number == pytest.approx(max(1, sum(loads)))


def test_without_loads_replicas_stay_as_they_are() -> None:
    assert by_load(Context({})) == (3, {})
