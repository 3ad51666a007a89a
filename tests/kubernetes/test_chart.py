"""The chart, rendered by Helm's own library: with its defaults, and with each value changed.

It runs where that library is, which `make test-deploy` installs: ANTIPHON_TEST_HELM is the folder of its environment,
with the schemas of KEDA and of the Prometheus operator in `node_modules`.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Settings
from tests.kubernetes.manifests import (
    DEPLOY,
    documents,
    drain_seconds,
    model_names,
    pod_faults,
    pod_of,
    queries,
    query_faults,
    schema_faults,
    together_faults,
)
from tests.kubernetes.test_samples import FILES, labels, paths, read, values
from tests.test_config import Serve, no_variables, serve

__all__ = ["labels", "no_variables", "serve"]  # fixtures

HELM = os.environ.get("ANTIPHON_TEST_HELM", "")
pytestmark = [
    pytest.mark.skipif(not HELM, reason="needs Helm's library: make test-deploy"),
    pytest.mark.asyncio(loop_scope="module"),
]
HERE = Path(__file__).parent
CHANGES: Mapping[str, Any] = {
    "image": "registry.example/antiphon:0.1.0",
    "model": "org/model",
    "modelName": "other",
    "modelsClaim": "",
    "replicas": 1,
    "gpus": 2,
    "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "16Gi", "cpu": "8"}},
    "keysSecret": "",
    "storeSecret": "database",
    "drainSeconds": 45,
    "extraArgs": ["--parallel", "8", "--allow-host", "llm.example.com"],
    "autoscaling.enabled": True,
    "autoscaling.maxReplicas": 3,
    "autoscaling.answers": 16,
    "autoscaling.prometheus": "https://prometheus.example",
    "inferencePool.enabled": True,
    "inferencePool.picker": "epp",
    "serviceMonitor.enabled": True,
}
"""Another value of each."""
REFUSED: list[dict[str, Any]] = [
    {"replica": 3},
    {"replicas": 0},
    {"replicas": "2"},
    {"modelName": 'a"} or vector(1)'},
    {"model": ""},
    {"autoscaling": {"prometheus": "prometheus:9090"}},
    {"resources": {"limit": {}}},
    {"drainSeconds": 0},
]


def nested(path: str, value: Any) -> dict[str, Any]:
    """The value as Helm has it. What belongs to a part of the chart switches that on."""
    group, _, name = path.partition(".")
    return {group: {"enabled": True, name: value} if name else value}


EVERYTHING: dict[str, Any] = {}
for path, value in CHANGES.items():
    for group, content in nested(path, value).items():
        EVERYTHING[group] = EVERYTHING.get(group, {}) | content if "." in path else content
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    **{path: nested(path, value) for path, value in CHANGES.items()},
    "monitored without keys": {"serviceMonitor": {"enabled": True}, "keysSecret": ""},
    "everything": EVERYTHING,
}


@cache
def rendered() -> tuple[dict[str, list[Any]], list[str], Any]:
    """The resources of each case, the errors of what is refused, and the findings of the linter."""
    done = subprocess.run(  # noqa: S603
        [f"{HELM}/bin/python", str(HERE / "render.py"), str(DEPLOY / "chart")],
        input=json.dumps([*CASES.values(), *REFUSED]),
        capture_output=True,
        text=True,
        check=True,
    )
    output = json.loads(done.stdout)
    made = dict(zip(CASES, output["rendered"], strict=False))
    for case, files in made.items():
        assert isinstance(files, dict), (case, files)
    resources = {
        case: [*chain.from_iterable(documents(text) for text in files.values())]
        for case, files in made.items()
    }
    return resources, output["rendered"][len(CASES) :], output["lint"]


def case(name: str) -> list[Any]:
    return rendered()[0][name]


def of_kind(resources: list[Any], kind: str) -> Any:
    [resource] = [each for each in resources if each["kind"] == kind]
    return resource


async def test_each_value_has_a_case() -> None:
    assert CHANGES.keys() == paths(values())


async def test_the_linter_has_nothing_to_say() -> None:
    found = rendered()[2]
    assert found["errors"] == []
    assert [message["error"] for message in found["messages"]] in ([], ["icon is recommended"])


@pytest.mark.parametrize("name", CASES)
async def test_what_is_rendered_fits_schemas_and_server(
    serve: Serve, labels: Mapping[str, set[str]], name: str
) -> None:
    resources = case(name)
    assert len({(each["kind"], each["metadata"]["name"]) for each in resources}) == len(resources)
    for resource in resources:
        assert [*schema_faults(resource)] == []
        for query in queries(resource):
            assert [*query_faults(query, labels)] == []
    assert [*together_faults(resources)] == []
    deployment = of_kind(resources, "Deployment")
    assert [*pod_faults(deployment)] == []
    [container] = pod_of(deployment)["containers"]
    command, *arguments = container["args"]
    assert command == "serve"
    assert serve(*arguments).model.model_name == (CASES[name].get("modelName", "my-model"),)


@pytest.mark.parametrize("path", CHANGES)
async def test_each_value_changes_what_is_rendered(path: str) -> None:
    group = path.partition(".")[0]
    before = case("defaults" if group == path or path.endswith(".enabled") else f"{group}.enabled")
    assert case(path) != before


async def test_what_makes_no_sense_is_refused() -> None:
    errors = rendered()[1]
    for given, error in zip(REFUSED, errors, strict=True):
        assert isinstance(error, str), given


async def test_values_are_where_they_belong() -> None:
    resources = case("everything")
    deployment = of_kind(resources, "Deployment")
    pod = pod_of(deployment)
    [container] = pod["containers"]
    assert container["args"] == ["serve", "org/model", "--model-name", "other", *CHANGES["extraArgs"]]
    assert container["resources"]["limits"] == {"memory": "16Gi", "cpu": "8", "nvidia.com/gpu": 2}
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "4Gi"}
    assert "replicas" not in deployment["spec"], "KEDA has it"
    assert drain_seconds(container) == 45
    assert pod["terminationGracePeriodSeconds"] == 75
    scaled = of_kind(resources, "ScaledObject")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 3)
    [query] = queries(of_kind(resources, "ScaledObject"))
    assert set(model_names(query)) == {"other"}
    assert query.count('namespace="prod"') == 2
    assert of_kind(resources, "InferencePool")["spec"]["endpointPickerRef"]["name"] == "epp"


def variables(name: str) -> dict[str, Any]:
    [container] = pod_of(of_kind(case(name), "Deployment"))["containers"]
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom", {}).get("secretKeyRef"))
        for variable in container["env"]
    }


async def test_secrets_are_named_and_never_written() -> None:
    assert variables("defaults")["ANTIPHON_STORE"] == "none"
    assert variables("storeSecret")["ANTIPHON_STORE"] == {"name": "database", "key": "ANTIPHON_STORE"}
    for name in ("ANTIPHON_API_KEY", "ANTIPHON_SECRET"):
        assert variables("defaults")[name] == {"name": "antiphon-keys", "key": name}
        assert name not in variables("keysSecret")
    assert variables("keysSecret")["ANTIPHON_ALLOW_HOST"].split()[0] == "demo"
    monitor = of_kind(case("serviceMonitor.enabled"), "ServiceMonitor")
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == "antiphon-keys"
    [endpoint] = of_kind(case("monitored without keys"), "ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint


async def test_pickers_read_the_metrics_without_a_key() -> None:
    assert "ANTIPHON_PUBLIC_METRICS" not in variables("defaults")
    assert variables("inferencePool.enabled")["ANTIPHON_PUBLIC_METRICS"] == "true"
    assert Settings().public_metrics is False


def by_their_own_schemas(resources: list[Any]) -> list[str | None]:
    """What is wrong with resources of KEDA and of the Prometheus operator, by all that their projects define."""
    done = subprocess.run(  # noqa: S603
        ["node", str(HERE / "validate.mjs"), HELM],  # noqa: S607
        input=json.dumps(resources),
        capture_output=True,
        text=True,
        check=True,
    )
    faults: list[str | None] = json.loads(done.stdout)
    return faults


async def test_resources_of_others_fit_the_definitions_of_their_projects() -> None:
    kinds = {"ScaledObject", "ServiceMonitor"}
    all_ = [*chain.from_iterable(rendered()[0].values()), *chain.from_iterable(read(name) for name in FILES)]
    chosen = [each for each in all_ if each["kind"] in kinds]
    assert {each["kind"] for each in chosen} == kinds
    assert by_their_own_schemas(chosen) == [None] * len(chosen)
    broken = [
        {**each, "spec": {**each["spec"], "triggers": [{"type": 1}], "endpoints": "none"}} for each in chosen
    ]
    assert all(by_their_own_schemas(broken))
