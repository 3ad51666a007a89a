"""What manifests of Kubernetes must have to fit their schemas and this server. Each check returns faults, as texts."""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import promql_parser
import yaml

from antiphon.config import Settings
from antiphon.engines.registry import names, options_of
from antiphon.http.app import ROUTES
from antiphon.option_sources import option_names

Resource = Mapping[str, Any]

HERE = Path(__file__).parent
DEPLOY = HERE.parent.parent / "deploy"
MARGIN = 15
"""Seconds for last events, and for the engine and the store to end."""
POD_LABELS = frozenset({"namespace", "pod"})
"""Labels that Prometheus adds to the metrics of pods."""
PROBES = {"startupProbe": "/ready", "readinessProbe": "/health", "livenessProbe": "/version"}


@cache
def schemas() -> Mapping[str, Any]:
    """The schemas of resources of others, by kind."""
    read: Mapping[str, Any] = yaml.safe_load((HERE / "custom_resources.yaml").read_text())
    return {kind: _of_objects(schema) for kind, schema in read.items()}


def _of_objects(schema: Any) -> Any:
    """The schema, whose parts with properties are objects."""
    if not isinstance(schema, dict):
        return schema
    parts = {name: _of_objects(part) for name, part in schema.items()}
    return {"type": "object", **parts} if "properties" in parts and "type" not in parts else parts


def documents(text: str) -> list[Any]:
    """The documents of a file."""
    return [document for document in yaml.safe_load_all(text) if document]


def pod_of(resource: Resource) -> Any:
    """The specification of the pods of a resource; None if it has none."""
    if resource["kind"] == "InferenceService":
        beside = {"minReplicas", "maxReplicas", "labels", "autoScaling"}
        return {name: value for name, value in resource["spec"]["predictor"].items() if name not in beside}
    return resource["spec"]["template"]["spec"] if resource["kind"] == "Deployment" else None


def pod_labels(resource: Resource) -> Mapping[str, str]:
    """The labels of the pods of a resource."""
    if resource["kind"] == "InferenceService":
        return resource["spec"]["predictor"].get("labels") or {}
    return resource["spec"]["template"]["metadata"]["labels"]  # type: ignore[no-any-return]


def schema_faults(resource: Resource) -> Iterator[str]:
    """Where a resource does not fit the schema of its kind."""
    kind = resource["kind"]
    if kind not in schemas():
        yield from _core_faults(resource)
        return
    for error in jsonschema.Draft202012Validator(schemas()[kind]).iter_errors(resource):
        yield f"{kind}: {error.json_path}: {error.message}"
    unknown = resource.keys() - {"apiVersion", "kind", "metadata", "spec"}
    yield from (f"{kind}: {name}" for name in unknown)
    yield from _core_faults({"apiVersion": "v1", "kind": "ConfigMap", "metadata": resource["metadata"]})
    if (pod := pod_of(resource)) is not None:
        yield from _core_faults({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod})


def _core_faults(resource: Resource) -> Iterator[str]:
    try:
        # It changes what it checks.
        given = copy.deepcopy(dict(resource))
        kubernetes_validate.validate(given, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{resource['kind']}: {error.message}"


# What is the server's own


def pod_faults(resource: Resource) -> Iterator[str]:
    """What in a pod does not fit the server: ports, probes, variables, the time to end, and its rights."""
    pod = pod_of(resource)
    [container] = pod["containers"]
    ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
    if [*ports.values()] != [Settings().port]:
        yield f"ports {ports}"
    for name, path in PROBES.items():
        call = container[name]["httpGet"]
        if call["path"] != path or ports.get(call["port"], call["port"]) != Settings().port:
            yield f"{name}: {call}"
    variables = {variable["name"] for variable in container.get("env", ())}
    known = {f"ANTIPHON_{name.upper()}" for name in _options()}
    yield from (f"no option: {name}" for name in variables - known)
    if pod["enableServiceLinks"] or not pod["securityContext"]["runAsNonRoot"]:
        yield "a link of a service, or root"
    if not container["securityContext"]["readOnlyRootFilesystem"]:
        yield "it may write everywhere"
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    if mounts != {volume["name"] for volume in pod["volumes"]}:
        yield f"mounts {mounts}"
    if not {"/data", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}:  # noqa: S108
        yield "no place to write"
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    needed = float(seconds) + drain_seconds(container) + MARGIN
    if sleep != "sleep" or pod["terminationGracePeriodSeconds"] < needed:
        yield f"it is killed after {pod['terminationGracePeriodSeconds']} seconds, and needs {needed}"


@cache
def _options() -> set[str]:
    engines = [options_of(engine) for engine in names()]
    return option_names(*Settings().option_tables, *engines) | {"engine", "tool"}


def drain_seconds(container: Mapping[str, Any]) -> float:
    """How long running answers get to end, by a variable or an argument."""
    for variable in container.get("env", ()):
        if variable["name"] == "ANTIPHON_DRAIN_SECONDS":
            return float(variable["value"])
    arguments = container["args"]
    return float(arguments[arguments.index("--drain-seconds") + 1])


def queries(resource: Resource) -> Iterator[str]:
    """The expressions of Prometheus in a resource."""
    spec = resource.get("spec", {})
    if resource["kind"] == "ScaledObject":
        yield from (trigger["metadata"]["query"] for trigger in spec["triggers"])
    if resource["kind"] == "InferenceService":
        metrics = spec["predictor"]["autoScaling"]["metrics"]
        yield from (metric["external"]["metric"]["query"] for metric in metrics)


def adapter_queries(values: Mapping[str, Any]) -> Iterator[str]:
    """The expressions in the values of prometheus-adapter, for one pod."""
    for rule in values["rules"]["custom"]:
        yield rule["seriesQuery"]
        query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
        yield query.replace("<<.LabelMatchers>>", 'namespace="default",pod="antiphon-1"')


def selectors(node: Any) -> Iterator[Any]:
    """The metrics that an expression of Prometheus reads."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from (*selectors(node.lhs), *selectors(node.rhs))
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif not isinstance(node, promql_parser.NumberLiteral):
        yield from selectors(node.expr)


def query_faults(query: str, labels: Mapping[str, set[str]]) -> Iterator[str]:
    """What an expression reads that the server does not have. `labels` are those of its metrics, by name."""
    for selector in selectors(promql_parser.parse(query)):
        if selector.name not in labels:
            yield f"no metric: {selector.name}"
            continue
        matched = {matcher.name for matcher in selector.matchers.matchers}
        yield from (f"no label: {name}" for name in matched - labels[selector.name] - POD_LABELS)


def together_faults(resources: Sequence[Resource]) -> Iterator[str]:
    """What resources name of each other that is not there: pods, ports, paths, targets."""
    pods = [pod_labels(each) for each in resources if pod_of(each) is not None]
    deployments = {each["metadata"]["name"] for each in resources if each["kind"] == "Deployment"}
    services = [each for each in resources if each["kind"] == "Service"]
    for resource in resources:
        kind, spec = resource["kind"], resource.get("spec", {})
        match kind:
            case "Service":
                yield from _unselected(kind, spec["selector"], pods)
            case "InferencePool" | "PodDisruptionBudget" | "Deployment":
                yield from _unselected(kind, spec["selector"]["matchLabels"], pods)
                if spec.get("targetPorts", _TARGET_PORTS) != _TARGET_PORTS:
                    yield f"{kind}: {spec['targetPorts']}"
            case "ServiceMonitor":
                yield from _monitor_faults(spec, services)
            case "ScaledObject" | "HorizontalPodAutoscaler":
                if (target := spec["scaleTargetRef"]["name"]) not in deployments:
                    yield f"{kind}: no Deployment {target}"


_TARGET_PORTS = [{"number": Settings().port}]


def _monitor_faults(spec: Mapping[str, Any], services: Sequence[Resource]) -> Iterator[str]:
    labels = [service["metadata"]["labels"] for service in services]
    yield from _unselected("ServiceMonitor", spec["selector"]["matchLabels"], labels)
    ports = {port["name"] for service in services for port in service["spec"]["ports"]}
    paths = {getattr(route, "path", None) for route in ROUTES}
    for endpoint in spec["endpoints"]:
        if endpoint["port"] not in ports or endpoint["path"] not in paths:
            yield f"ServiceMonitor: {endpoint}"


def _unselected(
    kind: str, selected: Mapping[str, str], targets: Iterable[Mapping[str, str]]
) -> Iterator[str]:
    if not any(selected.items() <= labels.items() for labels in targets):
        yield f"{kind}: nothing has the labels {dict(selected)}"


def model_names(query: str) -> list[str]:
    """The models that an expression names."""
    return re.findall(r'model_name="([^"]*)"', query)
