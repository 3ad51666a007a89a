"""The samples for schedulers and autoscalers in `deploy/` fit their schemas, each other, and this server."""

import copy
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import jsonschema
import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from antiphon.engines.figures import AdapterFigures, CacheFigures
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Health
from tests.http.picker import WEIGHTS, read_endpoints
from tests.kubernetes.manifests import (
    DEPLOY,
    PROBES,
    adapter_queries,
    documents,
    model_names,
    pod_faults,
    pod_of,
    queries,
    query_faults,
    schema_faults,
    together_faults,
)
from tests.server import NO_TLS, running
from tests.test_config import Serve, no_variables, serve

__all__ = ["no_variables", "serve"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILES = ("scaling/keda.yaml", "scaling/hpa.yaml", "scaling/service-monitor.yaml", "llm-d/inference-pool.yaml")
"""What is added to kubernetes.yaml."""
CHART = DEPLOY / "chart"


def read(name: str) -> list[Any]:
    return documents((DEPLOY / name).read_text())


RESOURCES = [(name, each) for name in (*FILES, "kserve.yaml", "kubernetes.yaml") for each in read(name)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def labels() -> AsyncIterator[Mapping[str, set[str]]]:
    """The labels of the metrics of a server, by their names."""
    figures = CacheFigures(0.5, 16, 100, 10, 5, adapters=AdapterFigures())
    async with (
        running(ScriptedEngine([{"output": "Hi"}], figures=figures)) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        families = text_string_to_metric_families((await http.get("/metrics")).text)
        yield {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("name", "resource"), RESOURCES, ids=[f"{name}-{each['kind']}" for name, each in RESOURCES]
)
async def test_a_sample_fits_the_schema_of_its_kind(name: str, resource: Any) -> None:
    assert [*schema_faults(resource)] == []


@pytest.mark.parametrize("name", FILES)
async def test_a_sample_fits_the_manifests_that_it_is_added_to(name: str) -> None:
    assert [*together_faults([*read("kubernetes.yaml"), *read(name)])] == []


@pytest.mark.parametrize("name", ["kserve.yaml", "kubernetes.yaml"])
async def test_pods_fit_the_server(name: str) -> None:
    [resource] = [each for each in read(name) if pod_of(each) is not None]
    if name == "kubernetes.yaml":  # its drain is in the configuration, and is checked with it
        resource["spec"]["template"]["spec"]["containers"][0]["args"] += ["--drain-seconds", "290"]
    assert [*pod_faults(resource)] == []


async def test_kserve_runs_the_same_pods_as_the_manifests(serve: Serve) -> None:
    [deployment] = [each for each in read("kubernetes.yaml") if each["kind"] == "Deployment"]
    [service] = read("kserve.yaml")
    ours, theirs = ({**pod_of(each)["containers"][0]} for each in (deployment, service))
    for part in ("resources", "securityContext", "lifecycle", "image", "envFrom"):
        assert ours[part] == theirs[part]
    command, *arguments = theirs["args"]
    assert command == "serve"
    settings = serve(*arguments)
    assert settings.model.model_name == ("my-model",)
    assert settings.drain_seconds == 290
    assert deployment["spec"]["template"]["metadata"]["labels"] == service["spec"]["predictor"]["labels"]


async def test_expressions_read_metrics_and_labels_that_the_server_has(
    labels: Mapping[str, set[str]],
) -> None:
    [adapter] = read("scaling/prometheus-adapter.yaml")
    expressions = [query for _, each in RESOURCES for query in queries(each)]
    assert len(expressions) == 2
    for expression in expressions:
        assert set(model_names(expression)) == {"my-model"}
    for expression in (*expressions, *adapter_queries(adapter)):
        assert [*query_faults(expression, labels)] == []


async def test_the_autoscaler_of_kubernetes_reads_what_the_adapter_makes() -> None:
    [adapter] = read("scaling/prometheus-adapter.yaml")
    [autoscaler] = read("scaling/hpa.yaml")
    made = [rule["name"]["as"] for rule in adapter["rules"]["custom"]]
    assert [metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]] == made


async def test_probes_are_answered_with_keys_and_tell_the_end() -> None:
    async with (
        running([{"output": "Hi"}], api_key=("key",)) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS) as http,
    ):
        answers = {probe: (await http.get(path)).status_code for probe, path in PROBES.items()}
        assert set(answers.values()) == {200}
        server.models.health = Health.DRAINING
        answers = {probe: (await http.get(path)).status_code for probe, path in PROBES.items()}
        assert answers == {"startupProbe": 503, "readinessProbe": 503, "livenessProbe": 200}


# llm-d


async def test_llm_d_reads_the_file_of_endpoints() -> None:
    assert [endpoint.url for endpoint in read_endpoints(DEPLOY / "llm-d" / "endpoints.yaml")] == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
    ]


async def test_the_picker_uses_its_plugins_the_renderer_is_a_server_and_the_file_is_watched() -> None:
    [config] = read("llm-d/picker.yaml")
    plugins = {plugin.get("name", plugin["type"]): plugin for plugin in config["plugins"]}
    [profile] = config["schedulingProfiles"]
    used = {reference["pluginRef"]: reference.get("weight") for reference in profile["plugins"]}
    assert used.keys() <= plugins.keys()
    scorers = {
        "prefix-cache": "prefix",
        "queue": "queue",
        "kv-cache-utilization": "usage",
        "lora-affinity": "adapter",
    }
    weights = {scorers[name.removesuffix("-scorer")]: used[name] for name in used if name.endswith("-scorer")}
    assert weights == WEIGHTS

    files = plugins[config["dataLayer"]["discovery"]["endpoints"]["pluginRef"]]
    assert files["type"] == "file-discovery"
    assert files["parameters"]["watchFile"] is True
    assert Path(files["parameters"]["path"]).name == "endpoints.yaml"
    urls = [endpoint.url for endpoint in read_endpoints(DEPLOY / "llm-d" / "endpoints.yaml")]
    assert plugins["token-producer"]["parameters"]["vllm"]["url"] in urls
    named = plugins["prefix-cache-scorer"]["parameters"]["prefixMatchInfoProducerName"]
    assert named in plugins


# The chart, without Helm


def schema() -> Any:
    return json.loads((CHART / "values.schema.json").read_text())


def values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def paths(tree: Mapping[str, Any]) -> set[str]:
    """The names of values, as templates write them."""
    grouped = ("autoscaling", "inferencePool", "serviceMonitor")
    beneath = {f"{group}.{name}" for group in grouped for name in tree[group]}
    return (tree.keys() - set(grouped)) | beneath


async def test_the_values_fit_their_schema_which_knows_no_others() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.validate(values(), schema())
    described = schema()["properties"]
    described.pop("global")  # Helm adds it
    assert paths({name: part.get("properties", {}) for name, part in described.items()}) == paths(values())


async def test_templates_use_each_value_and_no_other() -> None:
    text = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    assert {name.removesuffix(".limits") for name in used} == paths(values())


# Each check finds what it is for


def change(resource: Any, path: str, value: Any) -> Any:
    """The resource with another value, or without one if that is None. Parts of the path are names and numbers."""
    changed = copy.deepcopy(resource)
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place = changed
    for part in way:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return changed


def one(kind: str) -> Any:
    return next(copy.deepcopy(each) for _, each in RESOURCES if each["kind"] == kind)


BROKEN: list[tuple[str, str, Any]] = [
    ("ScaledObject", "spec/triggers/0/metadata/threshold", 4),
    ("ScaledObject", "spec/triggers/0/metadata/serverAddress", None),
    ("ScaledObject", "spec/minReplicas", 2),
    ("ScaledObject", "apiVersion", "keda.sh/v1"),
    ("ServiceMonitor", "spec/endpoints/0/port", 8000),
    ("ServiceMonitor", "spec/endpoints/0/bearerToken", "secret"),
    ("InferencePool", "spec/endpointPickerRef/port", 9002),
    ("InferencePool", "spec/endpointPickerRef", None),
    ("InferencePool", "spec/extensionRef", {"name": "antiphon-picker"}),
    ("InferencePool", "spec/targetPortNumber", 8000),
    ("HTTPRoute", "spec/rules/0/timeouts/request", 0),
    ("HorizontalPodAutoscaler", "spec/metrics/0/pods/target/average", "4"),
    ("InferenceService", "spec/predictor/autoScaling/metrics/0/external/target/averageValue", 4),
    ("InferenceService", "spec/predictor/containers/0/readyProbe", {}),
    ("InferenceService", "spec/predictor/scaleMetric", "concurrency"),
    ("InferenceService", "metadata/annotations/serving.kserve.io~deploymentMode", "RawDeployment"),
    ("InferenceService", "metadata/labels", {"a": 1}),
]


@pytest.mark.parametrize(("kind", "path", "value"), BROKEN)
async def test_what_is_broken_does_not_fit_its_schema(kind: str, path: str, value: Any) -> None:
    changed = one(kind)
    if "~" in path:
        changed["metadata"]["annotations"][path.rpartition("annotations/")[2].replace("~", "/")] = value
    else:
        changed = change(changed, path, value)
    assert [*schema_faults(changed)]


CONTAINER = "spec/predictor/containers/0"
WRONG_PODS: list[tuple[str, Any]] = [
    (f"{CONTAINER}/ports/0/containerPort", 8080),
    (f"{CONTAINER}/readinessProbe/httpGet/path", "/healthz"),
    (f"{CONTAINER}/livenessProbe/httpGet/port", 8080),
    (
        f"{CONTAINER}/env",
        [{"name": "ANTIPHON_DRAIN", "value": "290"}, {"name": "ANTIPHON_DRAIN_SECONDS", "value": "9"}],
    ),
    (f"{CONTAINER}/lifecycle/preStop/exec/command/1", "60"),
    (f"{CONTAINER}/args/5", "310"),
    (f"{CONTAINER}/volumeMounts/2", None),
    (f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False),
    ("spec/predictor/terminationGracePeriodSeconds", 300),
    ("spec/predictor/enableServiceLinks", True),
]


@pytest.mark.parametrize(("path", "value"), WRONG_PODS)
async def test_pods_that_do_not_fit_the_server_are_noticed(path: str, value: Any) -> None:
    assert [*pod_faults(change(one("InferenceService"), path, value))]


APART: list[tuple[str, str, Any]] = [
    ("scaling/keda.yaml", "spec/scaleTargetRef/name", "other"),
    ("scaling/hpa.yaml", "spec/scaleTargetRef/name", "other"),
    ("scaling/service-monitor.yaml", "spec/endpoints/0/path", "/stats"),
    ("scaling/service-monitor.yaml", "spec/endpoints/0/port", "web"),
    ("scaling/service-monitor.yaml", "spec/selector/matchLabels/app", "antiphon"),
    ("llm-d/inference-pool.yaml", "spec/selector/matchLabels/app", "antiphon"),
    ("llm-d/inference-pool.yaml", "spec/targetPorts/0/number", 80),
]


@pytest.mark.parametrize(("name", "path", "value"), APART)
async def test_samples_that_do_not_fit_together_are_noticed(name: str, path: str, value: Any) -> None:
    assert [*together_faults([*read("kubernetes.yaml"), change(read(name)[0], path, value)])]


@pytest.mark.parametrize(
    "query",
    [
        "sum(vllm:requests_waiting)",
        'sum(vllm:num_requests_waiting{model="a"})',
        "avg(vllm:gpu_cache_usage_perc) + 1",
    ],
)
async def test_expressions_that_read_something_else_are_noticed(
    labels: Mapping[str, set[str]], query: str
) -> None:
    assert [*query_faults(query, labels)]
