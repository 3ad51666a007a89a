"""A real local Ray for tests: one cluster of this process, and servers deployed on it.

`make test-ray` runs the tests twice: with Ray's proxy, and with the three variables of docs/ray.md.
"""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import ray
from ray import serve

from antiphon.ray import app
from tests.server import NO_TLS

LONGEST_WAIT = 90
"""Seconds: a bound for a busy machine, not what it takes."""
DIRECT = os.environ.get("RAY_SERVE_ENABLE_DIRECT_INGRESS") == "1"
"""Clients reach replicas through HAProxy."""
STORY = "Once upon a time there was a server that answered every question, one word after the other."
SCRIPT: list[dict[str, Any]] = [
    {"when": "a long story", "output": " ".join([STORY] * 6), "delay_ms": 100},
    {"when": "a story", "output": STORY, "delay_ms": 100},
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 20},
    {"output": "Hello there, friend!"},
]


class Cluster:
    """A cluster, and the server on it at `url`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.script = folder / "script.jsonl"
        self.script.write_text("\n".join(json.dumps(line) for line in SCRIPT))

    def deploy(self, change: Callable[[Any], Any] | None = None, **args: Any) -> None:
        """Deploy a version, and wait until it runs."""
        scripted = {"engine": "scripted", "script": str(self.script), "dialect": "hermes"}
        application = app(args if {"model", "engine"} & args.keys() else {**scripted, **args})
        serve.run(application if change is None else change(application))

    @property
    def actors(self) -> dict[str, Any]:
        """The replicas, by name."""
        named = ray.util.list_named_actors(all_namespaces=True)
        names = [actor["name"] for actor in named if actor["name"].startswith("SERVE_REPLICA::default")]
        return {name: ray.get_actor(name, namespace="serve") for name in names}

    @property
    def running(self) -> int:
        """How many replicas run."""
        status = serve.status().applications["default"].deployments["antiphon"]
        return int(status.replica_states.get("RUNNING", 0))

    def ask(self, question: Callable[[Any], Any]) -> dict[str, Any]:
        """What a function of the replica's object in Ray says in each, by the names of the replicas."""
        asked = {name: actor.__ray_call__.remote(question) for name, actor in self.actors.items()}
        return {name: ray.get(answer) for name, answer in asked.items()}

    def works_on(self, response_id: str) -> int | None:
        """The process of the replica that works on a background response, if one does."""

        def jobs(replica: Any) -> tuple[int, list[str]]:
            server = replica._replica_impl._user_callable_wrapper._callable
            begun = server is not None and server._runtime is not None
            return os.getpid(), [*server._runtime.worker._jobs.values()] if begun else []

        return next((pid for pid, ids in self.ask(jobs).values() if response_id in ids), None)

    def lines(self) -> list[str]:
        """What the replicas have written to stderr."""
        logs = [log.read_text() for log in self.folder.glob("session_2*/logs/worker-*.err")]
        own = [log for log in logs if ":actor_name:ServeReplica" in log]
        return [line for log in own for line in log.splitlines() if not line.startswith(":")]

    def request(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """A request, by a connection of its own."""
        return httpx.request(method, self.url + path, json=body, timeout=LONGEST_WAIT, verify=NO_TLS, **more)

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        response = self.request("POST", path, body)
        assert response.status_code == status, response.text
        return response.json()

    def get(self, path: str, status: int = 200) -> Any:
        response = self.request("GET", path)
        assert response.status_code == status, response.text
        return response.json()

    def respond(self, given: str, **more: Any) -> Any:
        return self.post("/v1/responses", {"model": "scripted", "input": given, **more})

    def response(self, response_id: str) -> Any:
        """A stored response, also while a replica that has died is still asked for it."""
        for _ in range(100):
            with suppress(httpx.TransportError):
                return self.get(f"/v1/responses/{response_id}")
            time.sleep(0.1)
        raise AssertionError("no replica answers")

    def ended(self, response_id: str) -> Any:
        until(lambda: self.response(response_id)["status"] not in ("queued", "in_progress"))
        return self.response(response_id)


def until(condition: Callable[[], Any], seconds: float = LONGEST_WAIT) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Cluster]:
    """A cluster with few CPUs, in a folder with a short name: the path of a socket may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(
        num_cpus=3,
        num_gpus=2,  # there are none: Ray only counts them
        object_store_memory=100_000_000,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(folder),
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield Cluster(folder, port)
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(local_ray: Cluster) -> Iterator[Cluster]:
    """The cluster, on which nothing runs."""
    serve.delete("default")
    yield local_ray
    serve.delete("default")


def kill(pid: int) -> None:
    """Kill a replica, as a machine that fails does."""
    os.kill(pid, signal.SIGKILL)
