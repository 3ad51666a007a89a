"""Several processes as one server: real processes, over HTTP, on SQLite and PostgreSQL."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

import antiphon
from tests.server import NO_TLS
from tests.server_process import START_SECONDS, Process, serving
from tests.test_serve import ask, said, streaming, write_certificate

SOURCE = str(Path(antiphon.__file__).parents[1])
COUNT = 2

SCRIPT: list[dict[str, Any]] = [
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 20},
    {"when": "long", "output": "word ", "tokens": 60, "delay_ms": 50},
    {"output": "Hello there, friend!"},
]


def scripted(folder: Path) -> tuple[str, ...]:
    path = folder / "script.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in SCRIPT))
    return ("--engine", "scripted", "--script", str(path))


@contextmanager
def several(folder: Path, *options: str, **env: str) -> Iterator[Process]:
    args = ("--port", "0", "--processes", str(COUNT), "--debug-answers", "20", *options)
    with serving(folder, *args, PYTHONPATH=SOURCE, **env) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One that tests do not end."""
    folder = tmp_path_factory.mktemp("processes")
    with several(folder, *scripted(folder)) as process:
        assert process.url
        yield process


def children(server: Process) -> set[int]:
    """The processes of a server."""
    text = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return set(map(int, text.split()))


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, verify=NO_TLS, timeout=START_SECONDS)


def connected(url: str, count: int) -> Iterator[httpx.Client]:
    """Clients, each with a connection of its own."""
    with ExitStack() as stack:
        for _ in range(count):
            yield stack.enter_context(client_of(url))


def get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, verify=NO_TLS, timeout=START_SECONDS)


def post(url: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(url, json=body, headers=headers, verify=NO_TLS, timeout=START_SECONDS)


def chat(server: Process, content: str = "Hi") -> str:
    return said(post(f"{server.url}/v1/chat/completions", ask(content)))


def counter(server: Process, name: str, **labels: str) -> float:
    """The sum of a counter over its series with these labels."""
    total = 0.0
    for line in get(f"{server.url}/metrics").text.splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            total += float(found[2])
    return total


def log(server: Process) -> str:
    return server._err.read_text()


# One server


def test_it_is_announced_once_and_every_process_answers(server: Process) -> None:
    assert server.stdout.count("listening on") == 1
    assert len(children(server)) == COUNT
    with ExitStack() as stack:
        streams = [stack.enter_context(streaming(server.url, "endless")) for _ in range(12)]
        for payloads in streams:
            next(payloads)
        assert chat(server) == "Hello there, friend!"
    server.until(lambda: log(server).count("client_left") >= 12)
    shares = Counter(re.findall(r"client_left.* process=(\d)", log(server)))
    assert min(shares.values()) >= 5  # on a busy machine, one may wait longer than the others let it


def test_health_status_and_models_are_those_of_the_server(server: Process) -> None:
    answers = {get(f"{server.url}/health").text for _ in range(6)}
    assert len(answers) == 1
    assert json.loads(answers.pop())["status"] == "ready"
    assert len({get(f"{server.url}/v1/models").text for _ in range(6)}) == 1
    with streaming(server.url, "endless") as one, streaming(server.url, "endless") as other:
        next(one), next(other)
        for _ in range(4):
            [model] = get(f"{server.url}/v1/status").json()["models"]
            assert model["running"] == 2
            slots = get(f"{server.url}/slots").json()
            assert sum(slot["is_processing"] for slot in slots) == 2


def test_what_is_stored_is_there_for_every_process(server: Process) -> None:
    made = post(f"{server.url}/v1/responses", {"model": "scripted", "input": "Hi"}).json()
    for client in connected(server.url, 6):
        assert client.get(f"/v1/responses/{made['id']}").json() == made


def test_a_background_response_is_followed_from_every_process(server: Process) -> None:
    body = {"model": "scripted", "input": "Hi", "background": True, "stream": True}
    text = post(f"{server.url}/v1/responses", body).text
    assert "response.completed" in text
    response = json.loads(
        next(line for line in text.splitlines() if "response.created" in line and line.startswith("data"))[6:]
    )
    for client in connected(server.url, 4):
        again = client.get(f"/v1/responses/{response['response']['id']}", params={"stream": "true"}).text
        assert again == text


def test_records_of_answers_are_found_from_every_process(server: Process) -> None:
    ids = [post(f"{server.url}/v1/chat/completions", ask("Hi")).json()["id"] for _ in range(4)]
    for client in connected(server.url, 4):
        listed = [entry["id"] for entry in client.get("/v1/debug").json()["data"]]
        assert listed[:4] == ids[::-1]
        for made in ids:
            assert client.get(f"/v1/debug/{made}").json()["id"] == made
        assert client.get("/v1/debug/chatcmpl-none").status_code == 404


def test_metrics_are_sums_without_a_label(server: Process) -> None:
    name, labels = "http_requests_total", {"handler": "/v1/chat/completions", "status": "2xx"}
    before = counter(server, name, **labels)
    for _ in range(7):
        chat(server)
    assert {counter(server, name, **labels) for _ in range(6)} == {before + 7}
    text = get(f"{server.url}/metrics").text
    assert 'process="' not in text
    assert len(re.findall(r"^vllm:num_requests_running\{", text, re.MULTILINE)) == 1


def test_the_supervisor_knows_no_application() -> None:
    program = "import sys, antiphon.supervisor; print(*sys.modules)"
    loaded = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": SOURCE},
    ).stdout.split()
    assert not {"starlette", "uvicorn", "antiphon.app.app", "antiphon.run.models", "sqlalchemy"} & set(loaded)


def test_a_process_with_too_much_to_do_closes_connections(server: Process) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(server.url)) for _ in range(12)]
        of: dict[str, list[httpx.Client]] = {"0": [], "1": []}
        for client in clients:  # which stay open
            response = client.get("/v1/models")
            assert response.headers.get("connection") != "close"
            of[process_of(server, response)].append(client)
        place = max(of, key=lambda place: len(of[place]))
        busy, *_ = crowded = of[place]
        bodies = []  # to forget one would be to leave
        for client in crowded[1:6]:
            body = {**ask("endless"), "stream": True}
            stream = stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
            bodies.append(stream.iter_bytes())
            next(bodies[-1])
        assert busy.get("/v1/models").headers["connection"] == "close"
        again = busy.get("/v1/models")  # by another connection
        assert process_of(server, again) != place
        assert again.headers.get("connection") != "close"


def process_of(server: Process, response: httpx.Response) -> str:
    """The process that has answered, or does: its line of the log comes at the end of the answer."""
    found: list[str] = []

    def logged() -> bool:
        text = rf"process=(\d) request_id={response.headers['x-request-id']}"
        found[:] = re.findall(text, log(server))
        return bool(found)

    server.until(logged)
    return found[0]


# What cannot be


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--store", "memory", "http://127.0.0.1:1"), "cannot share a store in memory"),
        ((), "llama.cpp in Antiphon cannot be shared by several processes"),
        (("--engine", "vllm", "org/model"), "The engine vllm cannot be used without an extra"),
        (("http://127.0.0.1:1", "--tls-certificate", "x", "--tls-key", "y"), "No such file"),
    ],
)
def test_what_cannot_be_several_processes_is_refused(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    with several(tmp_path, *options) as server:
        assert server.ended() == 1
        assert says in server.stderr


def test_a_server_that_cannot_start_says_why_once(tmp_path: Path) -> None:
    with several(tmp_path, "http://127.0.0.1:1", "--connect-seconds", "1") as server:
        assert server.ended() == 1
        assert server.stderr.count("antiphon: ") == 1


def test_the_limits_of_a_key_hold_over_all(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[keys]]\nname = "ann"\nvalue = "k"\nconcurrent = 2\n')
    with several(tmp_path, *scripted(tmp_path), "--keys", str(keys)) as server, ExitStack() as stack:
        url, key = server.url, {"authorization": "Bearer k"}
        for client in (stack.enter_context(client_of(url)) for _ in range(2)):
            body = {**ask("endless"), "stream": True}
            stream = stack.enter_context(
                client.stream("POST", "/v1/chat/completions", json=body, headers=key)
            )
            assert stream.status_code == 200
            stack.callback(stream.iter_bytes().close)
        for _ in range(4):
            assert post(f"{url}/v1/chat/completions", ask("Hi"), **key).status_code == 429


# Sockets


def test_they_speak_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    write_certificate(certificate, key)
    options = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with several(tmp_path, *scripted(tmp_path), *options) as server:
        server.until(lambda: "listening on https://" in server.stdout, START_SECONDS)
        found = re.search(r"https://127\.0\.0\.1:(\d+)", server.stdout)
        assert found
        with socket.create_connection(("127.0.0.1", int(found[1]))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")  # which is no TLS
            assert not stranger.recv(1000).startswith(b"HTTP")
        context = ssl.create_default_context(cafile=certificate)
        for _ in range(4):
            assert httpx.get(f"{found[0]}/health", verify=context).json()["status"] == "ready"
        assert server.stderr == ""


def test_they_listen_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with several(tmp_path, *scripted(tmp_path), "--unix-socket", str(path)) as server:
        server.until(lambda: f"listening on unix:{path}" in server.stdout, START_SECONDS)
        for _ in range(4):
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(base_url="http://localhost", transport=transport) as client:
                assert said(client.post("/v1/chat/completions", json=ask("Hi"))) == "Hello there, friend!"
        server.send(signal.SIGTERM)
        assert server.ended() == 0
        assert not path.exists()


# Processes that end


def test_a_process_that_dies_is_started_again_and_nothing_is_forgotten(tmp_path: Path) -> None:
    labels = {"handler": "/v1/chat/completions", "status": "2xx"}
    with several(tmp_path, *scripted(tmp_path)) as server:
        for _ in range(6):
            chat(server)
        before = children(server)
        assert counter(server, "http_requests_total", **labels) == 6
        for died, victim in enumerate(before, 1):
            os.kill(victim, signal.SIGKILL)
            server.until(lambda died=died: server.stderr.count("a process has died") == died)  # type: ignore[misc]
            while log(server).count("a process is ready") < died:
                assert chat(server)
                assert get(f"{server.url}/health").json()["status"] == "ready"
        assert not children(server) & before
        assert counter(server, "http_requests_total", **labels) >= 7
        assert server.stdout.count("listening on") == 1


def test_three_deaths_within_a_minute_end_the_server(tmp_path: Path) -> None:
    with several(tmp_path, *scripted(tmp_path)) as server:
        assert server.url
        killed: set[int] = set()
        while len(killed) < 3:
            server.until(lambda: bool(children(server) - killed), START_SECONDS)
            victim = min(children(server) - killed)
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        assert server.ended() == 1
        assert "3 processes of this server have died within a minute" in server.stderr


def test_one_process_that_is_terminated_finishes_its_answers(tmp_path: Path) -> None:
    with several(tmp_path, *scripted(tmp_path)) as server:
        url, before = server.url, children(server)
        with streaming(url, "long") as one, streaming(url, "long") as other:
            next(one), next(other)
            victim = min(before)
            os.kill(victim, signal.SIGTERM)
            for _ in range(5):
                assert chat(server) == "Hello there, friend!"
                assert get(f"{server.url}/health").status_code == 200
            for payloads in (one, other):
                *_, end = payloads
                assert end == "[DONE]"
        server.until(lambda: victim not in children(server))
        server.until(lambda: len(children(server)) == COUNT, START_SECONDS)
        assert "a process has died" not in server.stderr


def test_processes_are_replaced_one_by_one_and_no_request_fails(tmp_path: Path) -> None:
    with several(tmp_path, *scripted(tmp_path)) as server:
        url, before = server.url, children(server)
        with streaming(url, "long") as payloads, client_of(url) as client:
            next(payloads)
            server.send(signal.SIGUSR2)
            end = time.monotonic() + START_SECONDS
            while before & children(server) and time.monotonic() < end:
                assert chat(server) == "Hello there, friend!"
                assert said(client.post("/v1/chat/completions", json=ask("Hi")))
            *_, last = payloads
            assert last == "[DONE]"
        assert not before & children(server)
        assert len(children(server)) == COUNT
        assert server.stderr == ""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_drains_all_and_the_second_stops_them(tmp_path: Path, signum: int, code: int) -> None:
    with several(tmp_path, *scripted(tmp_path)) as server:
        url, workers = server.url, children(server)
        with streaming(url, "endless") as payloads:
            next(payloads)
            server.send(signum)
            server.until(lambda: "finishing 1 request within 300 seconds" in server.stdout)
            server.until(lambda: get(f"{url}/health").status_code == 503)
            assert get(f"{url}/health").json()["status"] == "draining"
            server.send(signum)
            assert server.ended() == code
            *_, error, last = payloads
        assert "engine_not_ready" in error
        assert last == "[DONE]"
        assert server.stderr == ""
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_hangup_reads_the_keys_of_all(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[keys]]\nname = "ann"\nvalue = "old"')
    with several(tmp_path, *scripted(tmp_path), "--keys", str(keys)) as server:
        url = server.url
        keys.write_text('[[keys]]\nname = "ann"\nvalue = ["old", "new"]')
        server.send(signal.SIGHUP)
        server.until(lambda: log(server).count("keys read") == COUNT)
        for _ in range(4):
            assert (
                post(f"{url}/v1/chat/completions", ask("Hi"), authorization="Bearer new").status_code == 200
            )


def test_processes_end_with_their_supervisor(tmp_path: Path) -> None:
    with several(tmp_path, *scripted(tmp_path)) as server:
        assert server.url
        workers = children(server)
        server.kill()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


# Behind it, another server


@contextmanager
def pool(folder: Path, *options: str) -> Iterator[tuple[Process, Process, Process]]:
    """A server of several processes, and the two servers that run its model."""
    with ExitStack() as stack:
        replicas = []
        for name in ("one", "other"):
            own = folder / name
            own.mkdir()
            args = ("--port", "0", *scripted(own), "--store", "none")
            replicas.append(stack.enter_context(serving(own, *args)))
        first, second = replicas
        urls = (first.url, "--replica", second.url, "--upstream-kind", "chat")
        yield stack.enter_context(several(folder, *urls, *options)), first, second


def test_slots_are_shared_and_everybody_gets_one(tmp_path: Path) -> None:
    options = ("--parallel", "2", "--admin-key", "admin")
    with pool(tmp_path, *options) as (server, *replicas), ThreadPoolExecutor(12) as threads:
        url, admin = server.url, {"authorization": "Bearer admin"}
        answers = [threads.submit(post, f"{url}/v1/chat/completions", ask("long")) for _ in range(12)]
        most = Counter[str]()
        while not all(answer.done() for answer in answers):
            for replica in replicas:
                [model] = get(f"{replica.url}/v1/status").json()["models"]
                most[replica.url] = max(most[replica.url], model["running"])
            listed = get(f"{url}/v1/replicas", **admin).json()["data"]
            assert [replica["elsewhere"] for replica in listed] == [0, 0]  # they are one server
        assert all(answer.result().status_code == 200 for answer in answers)
        # Two, and one more for a process that did not see yet what the other one had taken.
        assert [*most.values()] == [pytest.approx(2.5, abs=0.5)] * 2
        drained = post(f"{url}/v1/replicas/drain", {"replica": replicas[0].url}, **admin)
        assert [replica["status"] for replica in drained.json()["data"]] == ["drained"]
        before = counter(replicas[0], "http_requests_total", handler="/v1/chat/completions")
        for client in connected(url, 4):
            assert said(client.post("/v1/chat/completions", json=ask("Hi")))
            listed = client.get("/v1/replicas", headers=admin).json()["data"]
            assert [replica["status"] for replica in listed] == ["drained", "up"]
        # One that is started later, too.
        server.send(signal.SIGUSR2)
        server.until(lambda: log(server).count("a process is replaced") == COUNT)
        for client in connected(url, 4):
            assert said(client.post("/v1/chat/completions", json=ask("Hi")))
        assert counter(replicas[0], "http_requests_total", handler="/v1/chat/completions") == before
        unknown = post(f"{url}/v1/replicas/drain", {"replica": "none"}, **admin)
        assert unknown.status_code == 404
        assert unknown.json()["error"]["param"] == "replica"


# Stores


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    url: str = request.getfixturevalue("postgresql_url")
    return url


def test_a_background_response_goes_on_when_its_process_dies(tmp_path: Path, store: str) -> None:
    options = (*scripted(tmp_path), "--store", store, "--lease-seconds", "1")
    with several(tmp_path, *options) as server:
        url, body = server.url, {"model": "scripted", "input": "long", "background": True}
        made = [post(f"{url}/v1/responses", body).json()["id"] for _ in range(3)]
        server.until(lambda: all(status(url, one) == "in_progress" for one in made))
        for client in connected(url, 2):
            for one in made:
                assert client.get(f"/v1/responses/{one}").json()["status"] == "in_progress"
        os.kill(min(children(server)), signal.SIGKILL)
        server.until(lambda: all(status(url, one) == "completed" for one in made))
        texts = {get(f"{url}/v1/responses/{one}").json()["output"][0]["content"][0]["text"] for one in made}
        assert len(texts) == 1


def status(url: str, response: str) -> str:
    found: str = get(f"{url}/v1/responses/{response}").json()["status"]
    return found
