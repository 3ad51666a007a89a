"""Servers in replicas of a real Ray: what clients get is what `antiphon serve` gives them.

Two ways lead to a replica, Ray's proxy and HAProxy: `make test-ray` runs these tests with both.
"""

import json
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of pydantic, about Ray's models
    pytest.importorskip("ray.serve", reason="needs Ray: make test-ray")

import ray
from msgspec.structs import replace
from ray import serve
from websockets.sync.client import connect

from antiphon.core.errors import AntiphonError, EngineError
from antiphon.ray import deployment
from antiphon.ray.deployment import application
from antiphon.ray.options import read
from antiphon.ray.replica import Replica, has_own_models
from antiphon.run.loading import ModelState, ModelStatus
from tests.ray.cluster import (
    DIRECT,
    LONGEST_WAIT,
    STORY,
    Cluster,
    cluster,
    kill,
    local_ray,
    until,
)
from tests.response_invariants import check, read_sse
from tests.server import NO_TLS

__all__ = ["cluster", "local_ray"]  # fixtures

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of its files and sockets
]

MESSAGES = [{"role": "user", "content": "Hi"}]
APIS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": MESSAGES}, "data: [DONE]"),
    "/v1/completions": ({"prompt": "Hi", "max_tokens": 999}, "data: [DONE]"),
    "/v1/responses": ({"input": "Hi"}, "event: response.completed"),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 999}, "event: message_stop"),
}
"""Requests, and a line that only the end of a stream has."""


@pytest.fixture(scope="module")
def one(local_ray: Cluster) -> Cluster:
    """One replica, whose store is in memory."""
    local_ray.deploy(store="memory")
    return local_ray


SECRET = {"secret": "shared"}


class Stream:
    """Reads a stream in a thread of its own."""

    def __init__(self, cluster: Cluster, path: str, body: Any, lines: int = 5) -> None:
        self.lines: list[str] = []
        self.broken = False
        self._thread = threading.Thread(target=self._read, args=(cluster, path, body), daemon=True)
        self._thread.start()
        until(lambda: len(self.lines) > lines)

    def _read(self, cluster: Cluster, path: str, body: Any) -> None:
        url = cluster.url + path
        try:
            with httpx.stream("POST", url, json=body, timeout=LONGEST_WAIT, verify=NO_TLS) as response:
                self.lines.extend(response.iter_lines())  # which takes them one by one
        except httpx.TransportError:
            self.broken = True

    def ended(self) -> list[str]:
        self._thread.join(LONGEST_WAIT)
        assert not self._thread.is_alive()
        return self.lines


def payloads(lines: list[str]) -> list[bytes]:
    """The events of a stream of the Responses API."""
    return read_sse("\n".join([*lines, ""]).encode())


def text_of(response: Any) -> str:
    [message] = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for part in message["content"])


# As any server


@pytest.mark.parametrize("path", APIS)
def test_every_api_answers_and_streams(one: Cluster, path: str) -> None:
    body, end = APIS[path]
    whole = one.post(path, {"model": "scripted", **body})
    assert "Hello there, friend!" in json.dumps(whole)
    with httpx.stream(
        "POST", one.url + path, json={"model": "scripted", "stream": True, **body}, verify=NO_TLS
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [*response.iter_lines()]
    assert end in lines


def test_a_stored_response_is_continued(one: Cluster) -> None:
    first = one.respond("Hi")
    second = one.respond("And then?", previous_response_id=first["id"])
    assert one.response(second["id"])["previous_response_id"] == first["id"]


def test_errors_have_the_form_of_their_api(one: Cluster) -> None:
    assert one.get("/v1/nothing", 404)["error"]["type"] == "not_found_error"
    assert one.get("/v1/embeddings", 405)["error"]["message"]
    unknown = {"model": "other", "messages": MESSAGES, "max_tokens": 9}
    assert one.post("/v1/chat/completions", unknown, 404)["error"]["code"] == "model_not_found"
    assert one.post("/v1/messages", unknown, 404)["type"] == "error"
    wrong = one.post("/v1/chat/completions", {"model": "scripted", "messages": 3}, 400)
    assert wrong["error"]["param"] == "messages"


def test_a_request_has_one_id(one: Cluster) -> None:
    for given in ({"x-request-id": "mine-7"}, {}):
        response = one.request("GET", "/v1/models", headers=given)
        [own] = response.headers.get_list("x-request-id")
        assert own == given.get("x-request-id", own)
    until(lambda: any("request_id=mine-7" in line for line in one.lines()))


def test_health_and_metrics(one: Cluster) -> None:
    one.respond("Hi")
    assert one.get("/health")["status"] == one.get("/ready")["status"] == "ready"
    metrics = one.request("GET", "/metrics").text
    assert re.search(r'^vllm:num_requests_running\{.*model_name="scripted"\} 0', metrics, re.MULTILINE)


FORM = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[(info|warning|error) *\] ")


def test_log_lines_have_one_form(one: Cluster) -> None:
    """There is one for each request, and those of Ray Serve itself look the same."""
    one.request("GET", "/v1/models", headers={"x-request-id": "one-line"})
    until(lambda: any("request_id=one-line" in line for line in one.lines()))
    assert sum("one-line" in line for line in one.lines()) == 1
    assert [line for line in one.lines() if not FORM.match(line)] == []


# Clients that leave

NOTHING_RUNS = 'vllm:num_requests_running{engine="0",model_name="scripted"} 0'


def test_a_stored_stream_whose_client_leaves_is_cancelled(one: Cluster) -> None:
    body = {"model": "scripted", "input": "endless", "stream": True}
    with httpx.stream("POST", one.url + "/v1/responses", json=body, verify=NO_TLS) as response:
        lines = response.iter_lines()
        created = next(line for line in lines if line.startswith("data: "))
        response_id = json.loads(created.removeprefix("data: "))["response"]["id"]
        for _ in range(20):
            next(lines)
    until(lambda: one.response(response_id)["status"] == "cancelled", 10)


@pytest.mark.skipif(DIRECT, reason="HAProxy 2.8 does not always see that a client has left before it answers")
@pytest.mark.parametrize("path", APIS)
def test_a_full_answer_whose_client_leaves(one: Cluster, path: str) -> None:
    """It is logged so, and the engine stops."""
    body = json.loads(json.dumps({"model": "scripted", **APIS[path][0]}).replace("Hi", "endless"))
    name = f"leaving{path.replace('/', '-')}"
    with suppress(httpx.TimeoutException):
        httpx.post(one.url + path, json=body, headers={"x-request-id": name}, timeout=0.5, verify=NO_TLS)
    until(lambda: any(f"request_id={name}" in line for line in one.lines()), 10)
    [line] = [line for line in one.lines() if f"request_id={name}" in line and "request  " in line]
    assert "finish=client_left" in line
    until(lambda: NOTHING_RUNS in one.request("GET", "/metrics").text, 10)


# WebSocket


def test_a_websocket_has_turns(one: Cluster) -> None:
    with connect(one.url.replace("http", "ws") + "/v1/responses") as socket:
        ids = []
        for _ in range(2):
            turn = {"type": "response.create", "model": "scripted", "input": "Hi", "store": False}
            socket.send(json.dumps({**turn, **({"previous_response_id": ids[-1]} if ids else {})}))
            while (event := json.loads(socket.recv(LONGEST_WAIT)))["type"] != "response.completed":
                assert event["type"].startswith("response.")
            ids.append(event["response"]["id"])
            assert text_of(event["response"]) == "Hello there, friend!"


def test_a_websocket_that_is_closed_ends_its_turn(one: Cluster) -> None:
    with connect(one.url.replace("http", "ws") + "/v1/responses") as socket:
        socket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "endless"}))
        created = json.loads(socket.recv(LONGEST_WAIT))
        for _ in range(10):
            socket.recv(LONGEST_WAIT)
    until(lambda: one.response(created["response"]["id"])["status"] == "cancelled", 10)


# Versions, and replicas that die


class Requests:
    """Sends requests without a pause, each on a connection of its own, and keeps their statuses."""

    def __init__(self, cluster: Cluster) -> None:
        self.statuses: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(cluster,), daemon=True)
        self._thread.start()

    def _send(self, cluster: Cluster) -> None:
        while not self._stop.is_set():
            try:
                status = cluster.request(
                    "POST", "/v1/chat/completions", {"model": "scripted", "messages": MESSAGES}
                ).status_code
            except httpx.TransportError:
                status = 0
            self.statuses.append(status)
            time.sleep(0.05)

    def ended(self) -> list[int]:
        self._stop.set()
        self._thread.join(LONGEST_WAIT)
        return self.statuses


def test_a_stream_outlives_a_new_version(cluster: Cluster) -> None:
    """It ends on the old replica, while requests go to the new one: none fails."""
    cluster.deploy(store="memory")
    stream = Stream(cluster, "/v1/responses", {"model": "scripted", "input": "a story", "stream": True})
    requests = Requests(cluster)
    before = {*cluster.actors}
    cluster.deploy(store="memory", max_tokens=99)
    until(lambda: not before & {*cluster.actors})
    statuses = requests.ended()
    assert text_of(check(payloads(stream.ended()))) == STORY
    assert {*statuses} == {200}


def test_a_killed_replica_is_replaced(cluster: Cluster) -> None:
    cluster.deploy(store="memory")
    [pid] = cluster.ask(lambda _: os.getpid()).values()
    kill(pid)
    began = time.monotonic()

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return cluster.request("GET", "/v1/models").status_code == 200
        return False

    time.sleep(0.2)
    until(answers, 30)
    assert time.monotonic() - began < 30


# Several as one server


@pytest.fixture(scope="module")
def two(local_ray: Cluster, postgresql_server: Any) -> Iterator[Cluster]:
    """Two replicas on one database."""
    postgresql_server.psql("CREATE DATABASE replicas;")
    url = str(postgresql_server.get_uri(database="replicas"))
    local_ray.deploy(replicas=2, store=url, **SECRET, lease_seconds=1)
    until(lambda: local_ray.running == 2)
    return local_ray


def test_replicas_know_what_the_others_have_stored(two: Cluster) -> None:
    ids = [two.respond("Hi")["id"] for _ in range(8)]
    assert [two.response(response_id)["status"] for response_id in ids * 2] == ["completed"] * 16


def test_metrics_are_those_of_all_replicas(two: Cluster) -> None:
    def answered() -> float:
        text = two.request("GET", "/metrics").text
        counts = re.findall(r'^vllm:request_success_total\{.*"stop".*\} (\S+)', text, re.MULTILINE)
        return sum(map(float, counts))

    before = answered()
    for _ in range(10):
        two.respond("Hi")
    assert [answered() for _ in range(4)] == [before + 10] * 4


def test_a_background_response_outlives_its_replica(two: Cluster) -> None:
    """It is killed in the middle; the other goes on, and requests are answered again soon."""
    response_id = two.respond("a story", background=True)["id"]
    until(lambda: two.works_on(response_id))
    time.sleep(0.5)  # in the middle of the sentence
    pid = two.works_on(response_id)
    assert pid is not None
    kill(pid)
    with suppress(httpx.TransportError):
        two.request("GET", "/v1/models")
    until(lambda: two.running == 2)
    response = two.ended(response_id)
    assert (response["status"], text_of(response)) == ("completed", STORY)
    assert any("a response is continued" in line and response_id in line for line in two.lines())


def test_a_replica_that_is_stopped_gives_its_responses_back(cluster: Cluster, postgresql_url: str) -> None:
    """Its lease would last for minutes; the replica of the new version continues at once."""
    options = {"store": postgresql_url, **SECRET, "lease_seconds": 600}
    cluster.deploy(**options)
    response_id = cluster.respond("a long story", background=True)["id"]
    until(lambda: cluster.works_on(response_id))
    old = cluster.works_on(response_id)
    cluster.deploy(**options, max_tokens=999)
    until(lambda: cluster.works_on(response_id) not in (None, old), 15)
    assert text_of(cluster.ended(response_id)) == " ".join([STORY] * 6)


# Scaling


def test_replicas_follow_the_load_of_the_engine(cluster: Cluster) -> None:
    """Two slots, and three requests that run or wait: two replicas. Then one again."""

    def quick(application: Any) -> Any:
        """Ray's delays of half a minute and of ten minutes are too long for a test."""
        deployment = application._bound_deployment
        config = deployment._deployment_config.autoscaling_config
        changes = {"look_back_period_s": 3, "upscale_delay_s": 1, "downscale_delay_s": 1}
        changed = deployment.options(autoscaling_config=config.model_copy(update=changes))
        return changed.bind(*deployment.init_args)

    cluster.deploy(quick, autoscale="1..2", store="none", parallel=2)
    assert cluster.running == 1
    body = {"model": "scripted", "messages": [{"role": "user", "content": "endless"}], "stream": True}
    stop = threading.Event()
    readers = [
        threading.Thread(target=_read_until, args=(cluster, body, stop), daemon=True) for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    until(lambda: cluster.running == 2)
    stop.set()
    until(lambda: cluster.running == 1)


def _read_until(cluster: Cluster, body: Any, stop: threading.Event) -> None:
    url = f"{cluster.url}/v1/chat/completions"
    with (
        suppress(httpx.TransportError),
        httpx.stream("POST", url, json=body, timeout=LONGEST_WAIT, verify=NO_TLS) as response,
    ):
        for _ in response.iter_lines():
            if stop.is_set():
                return


# Resources


def test_workers_of_vllm_have_a_bundle_each(cluster: Cluster) -> None:
    """Here with another engine: where GPUs are, and how its processes find the cluster."""
    args = {"engine": "scripted", "script": str(cluster.script), "store": "none"}
    serve.run(application(replace(read(args), gpus=2, spread=True)))
    [table] = [table for table in ray.util.placement_group_table().values() if table["state"] == "CREATED"]
    assert sorted(bundle.get("GPU", 0) for bundle in table["bundles"].values()) == [1, 1]
    [address] = cluster.ask(lambda _: os.environ["RAY_ADDRESS"]).values()
    assert address == ray.get_runtime_context().gcs_address
    body = {"model": "scripted", "messages": MESSAGES}
    assert "friend" in json.dumps(cluster.post("/v1/chat/completions", body))


def test_a_replica_has_as_many_gpus_as_it_says() -> None:
    plan = read({"model": "http://a:1", "gpus": 0.5, "drain_seconds": 7})
    arguments = deployment.arguments(plan)
    assert arguments["ray_actor_options"] == {"num_gpus": 0.5}
    assert arguments["graceful_shutdown_timeout_s"] == 7
    assert arguments["max_ongoing_requests"] == 10_000


# Health


class States:
    """Models in these states."""

    def __init__(self, *states: ModelStatus) -> None:
        self._states = states

    async def states(self) -> dict[str, ModelState]:
        return {str(place): ModelState(status) for place, status in enumerate(self._states)}


@pytest.mark.parametrize(
    ("states", "own", "healthy"),
    [
        ([ModelStatus.READY], True, True),
        ([ModelStatus.UNLOADED], True, True),
        ([ModelStatus.FAILED, ModelStatus.READY], True, True),
        ([ModelStatus.FAILED], True, False),
        ([ModelStatus.FAILED], False, True),
        ([], True, True),
    ],
)
async def test_a_replica_is_unhealthy_where_another_one_helps(
    states: list[ModelStatus], own: bool, healthy: bool
) -> None:
    replica = SimpleNamespace(_models=States(*states), _own_models=own)
    if healthy:
        await Replica.check_health(replica)
    else:
        with pytest.raises(EngineError, match="is replaced"):
            await Replica.check_health(replica)


def test_models_at_urls_are_not_own() -> None:
    assert has_own_models(read({}).settings)
    assert not has_own_models(read({"model": "http://a:1", "replica": "http://b:1"}).settings)


# Wrong options, and a real model


def test_wrong_keys_are_refused_before_anything_is_deployed(local_ray: Cluster) -> None:
    before = {*local_ray.actors}
    with pytest.raises(AntiphonError, match=r"Unknown option: stoer\. Did you mean store\?"):
        local_ray.deploy(stoer="none")
    assert {*local_ray.actors} == before


def test_a_server_below_a_path(cluster: Cluster) -> None:
    from antiphon.ray import app  # noqa: PLC0415

    args = {"engine": "scripted", "script": str(cluster.script), "store": "none", "root_path": "/llm"}
    serve.run(app(args), route_prefix="/llm")
    body = {"model": "scripted", "messages": MESSAGES}
    assert "friend" in json.dumps(cluster.post("/llm/v1/chat/completions", body))


def test_a_front_before_a_server_at_a_url(cluster: Cluster, tmp_path: Path) -> None:
    """The second shape: no model in the replicas."""
    from tests.server_process import serving  # noqa: PLC0415

    played = ("--port", "0", "--engine", "scripted", "--script", str(cluster.script), "--store", "none")
    with serving(tmp_path, *played) as server:
        cluster.deploy(model=server.url, replicas=2, store="none", **SECRET)
        body = {"messages": MESSAGES, "model": cluster.get("/v1/models")["data"][0]["id"]}
        assert "friend" in json.dumps(cluster.post("/v1/chat/completions", body))


def test_a_real_model_answers(cluster: Cluster) -> None:
    """SmolLM2, in llama.cpp, in the replica."""
    cluster.deploy(engine="llama_cpp", context=512, parallel=2, store="none", threads=2)
    name = cluster.get("/v1/models")["data"][0]["id"]
    messages = [{"role": "user", "content": "What is the capital of France? One word."}]
    body = {"model": name, "messages": messages, "max_tokens": 12, "temperature": 0}
    answer = cluster.post("/v1/chat/completions", body)
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_the_sample_for_kuberay_is_a_configuration_of_serve() -> None:
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415

    from tests.kubernetes.test_ray import SERVE  # noqa: PLC0415

    config = ServeDeploySchema.model_validate(SERVE)
    assert config.applications[0].import_path == "antiphon.ray:app"
