"""The sample for KubeRay fits its schema, Kubernetes', and the keys of `antiphon.ray:app`."""

import copy
from typing import Any

import pytest
import yaml

from antiphon.ray.options import read
from tests.kubernetes.manifests import DEPLOY, MARGIN, documents, schema_faults

[SERVICE] = documents((DEPLOY / "ray.yaml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
[WORKERS] = CLUSTER["workerGroupSpecs"]
PODS = [CLUSTER["headGroupSpec"]["template"]["spec"], WORKERS["template"]["spec"]]
SERVE = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])


def test_it_fits_its_schema() -> None:
    assert [*schema_faults(SERVICE)] == []


@pytest.mark.parametrize("name", ["groupName", "template"])
def test_what_is_broken_does_not(name: str) -> None:
    broken = copy.deepcopy(SERVICE)
    del broken["spec"]["rayClusterConfig"]["workerGroupSpecs"][0][name]
    assert [*schema_faults(broken)]


@pytest.mark.parametrize("spec", PODS)
def test_pods_fit_kubernetes(spec: Any) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    assert [*schema_faults(pod)] == []
    assert spec["enableServiceLinks"] is False  # a link would set ANTIPHON_PORT


def test_its_keys_are_those_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_STORE", "postgresql://antiphon@db/antiphon")  # of the secret
    monkeypatch.setenv("ANTIPHON_SECRET", "secret")
    [application] = SERVE["applications"]
    plan = read(application["args"])
    assert application["import_path"] == "antiphon.ray:app"
    assert (plan.least, plan.most) == (WORKERS["minReplicas"], WORKERS["maxReplicas"])
    assert (
        WORKERS["template"]["spec"]["terminationGracePeriodSeconds"] >= plan.settings.drain_seconds + MARGIN
    )


def test_the_port_is_the_one_of_the_proxy() -> None:
    ports = {port["name"]: port["containerPort"] for port in PODS[0]["containers"][0]["ports"]}
    assert ports["serve"] == SERVE["http_options"]["port"]
