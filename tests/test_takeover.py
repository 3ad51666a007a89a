"""Servers that die, stop and lose their database: background responses go on, in the middle of a sentence.

Real processes: `antiphon serve`, killed with SIGKILL, on SQLite and on PostgreSQL.
"""

import json
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.response_invariants import check, read_sse
from tests.search import CI
from tests.server import NO_TLS
from tests.server_process import Process, serving
from tests.test_serve import ALONE, refuses

SOON = "1"
"""Seconds of a lease that runs out while the test waits."""
NEVER = "600"
"""Of one that does not."""
LONGEST_WAIT = 60
"""Seconds: a bound for a busy machine, not what it takes."""

STORY = (
    "Once upon a time there was a server that answered every question, one word after the other, "
    "and whenever it fell silent another one took a deep breath and went on right where it had stopped."
)


def python(code: str) -> str:
    """A call of the code interpreter."""
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


SCRIPT: list[dict[str, Any]] = [
    {"when": "be brief", "output": "So be it."},
    {"when": "it is 42", "output": "So it is 42.", "delay_ms": 40},
    {"when": "kept", "output": python("print('it is', x + 1)"), "delay_ms": 40},
    {"when": "count", "output": python("x = 41\nprint('ke' + 'pt')"), "delay_ms": 40},
    {"when": "a story", "output": f"<think>Which one?</think>{STORY}", "delay_ms": 40},
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 20},
    {"output": "Hello there, friend!"},
]


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


class Servers:
    """Starts servers that play the script, each in a folder of its own; they are killed at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._count = 0
        (folder / "script.jsonl").write_text("\n".join(json.dumps(line) for line in SCRIPT))

    def start(self, store: str, *options: str, lease: str = SOON, script: bool = True) -> Process:
        self._count += 1
        folder = self._folder / f"server-{self._count}"
        folder.mkdir()
        played = ("--engine", "scripted", "--script", str(self._folder / "script.jsonl")) if script else ()
        args = ("--port", "0", "--lease-seconds", lease, *played, *options)
        server = serving(folder, *args, ANTIPHON_STORE=store, XDG_DATA_HOME=str(self._folder))
        return self._stack.enter_context(server)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path, stack)


def post(server: Process, given: str, status: int = 200, path: str = "/responses", **more: Any) -> Any:
    body = {"model": "scripted", "input": given, **more} if path == "/responses" else {}
    response = httpx.post(f"{server.url}/v1{path}", json=body, timeout=LONGEST_WAIT, verify=NO_TLS)
    assert response.status_code == status, response.text
    return response.json()


def steer(server: Process, response_id: str, given: str) -> Any:
    url = f"{server.url}/v1/responses/{response_id}/steer"
    response = httpx.post(url, json={"input": given}, timeout=LONGEST_WAIT, verify=NO_TLS)
    assert response.status_code == 200, response.text
    return response.json()


def get(server: Process, response_id: str, status: int = 200) -> Any:
    response = httpx.get(f"{server.url}/v1/responses/{response_id}", timeout=LONGEST_WAIT, verify=NO_TLS)
    assert response.status_code == status, response.text
    return response.json()


def ended(server: Process, response_id: str) -> Any:
    deadline = time.monotonic() + LONGEST_WAIT
    while (response := get(server, response_id))["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline, response
        time.sleep(0.05)
    return response


def until_stored(server: Process, response_id: str, items: int) -> None:
    """Wait until this number of its items are stored: a stream that is being sent may be ahead of its log."""
    deadline = time.monotonic() + LONGEST_WAIT
    while len((response := get(server, response_id))["output"]) < items:
        assert time.monotonic() < deadline, response
        time.sleep(0.01)


def text_of(response: Any) -> str:
    [message] = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for part in message["content"])


class Reader:
    """Reads a stream in a thread of its own, as far as it goes: `payloads` is what came until now."""

    def __init__(self, method: str, url: str, body: Any = None, **query: Any) -> None:
        self.payloads: list[bytes] = []
        self._request = (method, url, body, query)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        method, url, body, query = self._request
        with (
            suppress(httpx.TransportError),  # the server was killed
            httpx.stream(
                method, url, json=body, params=query, timeout=LONGEST_WAIT, verify=NO_TLS
            ) as response,
        ):
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.payloads.append(line.removeprefix("data: ").encode())

    def until(self, count: int) -> None:
        self._wait(lambda: len(self.payloads) >= count)

    def ended(self) -> list[bytes]:
        """All that it got, once the stream is over."""
        self._wait(lambda: not self._thread.is_alive())
        return self.payloads

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST_WAIT
        while not condition():
            assert time.monotonic() < deadline, self.payloads[-1:]
            time.sleep(0.005)

    @property
    def id(self) -> str:
        self.until(1)
        return str(json.loads(self.payloads[0])["response"]["id"])


def asking(server: Process, given: str, **more: Any) -> Reader:
    """A new response, streamed."""
    body = {"model": "scripted", "input": given, "stream": True, **more}
    return Reader("POST", f"{server.url}/v1/responses", body)


def following(server: Process, response_id: str, **query: Any) -> Reader:
    return Reader("GET", f"{server.url}/v1/responses/{response_id}", stream="true", **query)


def events(server: Process, response_id: str, **query: Any) -> list[bytes]:
    """The whole stream of a response, read from this server."""
    url = f"{server.url}/v1/responses/{response_id}"
    response = httpx.get(url, params={"stream": "true", **query}, timeout=LONGEST_WAIT, verify=NO_TLS)
    assert response.status_code == 200, response.text
    return read_sse(response.content)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The story of a server without interruptions."""
    with ExitStack() as stack:
        server = Servers(tmp_path_factory.mktemp("whole"), stack).start("memory")
        return check(asking(server, "a story", background=True).ended())


OURS = {"id", "created_at", "completed_at", "output"}
"""What differs between two responses to the same request; of the output, only ids."""


def assert_the_same(response: Any, whole: Any) -> None:
    """It was answered as if nothing had happened."""
    assert text_of(response) == STORY
    assert {key: response[key] for key in response.keys() - OURS} == {
        key: whole[key] for key in whole.keys() - OURS
    }


# Killed


def test_a_killed_server_goes_on_in_the_middle_of_the_sentence(
    servers: Servers, sqlite: str, uninterrupted: Any
) -> None:
    first = servers.start(sqlite)
    reader = asking(first, "a story", background=True)
    reader.until(20)
    first.kill()
    before = reader.ended()

    second = servers.start(sqlite)
    after = following(second, reader.id, starting_after=len(before) - 1)
    payloads = events(second, reader.id)

    last = check(payloads)
    assert_the_same(last, uninterrupted)
    assert payloads[: len(before)] == before
    assert after.ended() == payloads[len(before) :]
    assert get(second, reader.id) == last


def test_a_server_may_be_killed_again_and_again(servers: Servers, sqlite: str, uninterrupted: Any) -> None:
    server = servers.start(sqlite)
    response_id = post(server, "a story", background=True)["id"]
    seen: list[bytes] = []
    for _ in range(3):
        reader = following(server, response_id)
        reader.until(len(seen) + 8)
        server.kill()
        assert reader.ended()[: len(seen)] == seen
        seen = reader.payloads
        server = servers.start(sqlite)
    payloads = events(server, response_id)
    assert_the_same(check(payloads), uninterrupted)
    assert payloads[: len(seen)] == seen


@pytest.mark.parametrize("seen", [22] if CI else [6, 22, 40])
def test_an_answer_with_tools_goes_on_with_what_they_did(servers: Servers, sqlite: str, seen: int) -> None:
    """Killed in the first call, in the second, and after it: variables are there, and no call comes twice."""
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    first = servers.start(sqlite, "--code-interpreter", "--dialect", "hermes")
    reader = asking(first, "count", background=True, tools=tools)
    reader.until(seen)
    first.kill()
    before = reader.ended()

    second = servers.start(sqlite, "--code-interpreter", "--dialect", "hermes")
    payloads = events(second, reader.id)
    assert payloads[: len(before)] == before
    response = check(payloads)
    assert text_of(response) == "So it is 42."
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    assert [call["outputs"][0]["logs"] for call in calls] == ["kept\n", "it is 42\n"]


def test_input_outlives_the_server_that_answered(servers: Servers, sqlite: str) -> None:
    """Killed in the middle: the next server ends the answer where it was, and the response with the input follows."""
    first = servers.start(sqlite)
    reader = asking(first, "endless", background=True)
    reader.until(20)
    first.kill()
    before = reader.ended()

    second = servers.start(sqlite)
    taken = steer(second, reader.id, "be brief")
    payloads = events(second, reader.id)
    steered, following = check(payloads), ended(second, taken["response_id"])
    assert payloads[: len(before)] == before
    assert steered["incomplete_details"] == {"reason": "steered"}
    assert text_of(steered).startswith("word word")
    assert (following["status"], text_of(following)) == ("completed", "So be it.")
    assert following["previous_response_id"] == reader.id


def test_what_was_queued_is_answered(servers: Servers, sqlite: str) -> None:
    first = servers.start(sqlite, "--jobs", "1")
    running = asking(first, "endless", background=True)
    running.until(5)
    queued = [post(first, f"Hi {number}", background=True)["id"] for number in range(5)]
    first.kill()
    second = servers.start(sqlite, "--jobs", "2")
    for response_id in queued:
        assert text_of(check(events(second, response_id))) == "Hello there, friend!"


def test_what_was_answered_is_there(servers: Servers, sqlite: str) -> None:
    first = servers.start(sqlite)
    told = [post(first, "Hi")]
    told += [check(asking(first, "Hi").ended())]
    conversation = post(first, "", path="/conversations")
    told += [post(first, "Hi", conversation=conversation["id"])]
    first.kill()
    second = servers.start(sqlite)
    for response in told:
        assert get(second, response["id"]) == response
    items = httpx.get(f"{second.url}/v1/conversations/{conversation['id']}/items", verify=NO_TLS).json()[
        "data"
    ]
    assert len(items) == 2


def test_a_foreground_stream_whose_server_was_killed_has_failed(servers: Servers, sqlite: str) -> None:
    first = servers.start(sqlite)
    reader = asking(first, "a story")
    until_stored(first, reader.id, items=2)
    first.kill()
    before = reader.ended()

    second = servers.start(sqlite)
    response = ended(second, reader.id)
    payloads = events(second, reader.id)

    assert response["status"] == "failed"
    assert "stopped" in response["error"]["message"]
    logged = [payload for payload in payloads if payload in before]
    assert payloads[: len(logged)] == before[: len(logged)]  # what was sent last may not be written yet
    assert check(payloads[len(logged) :], after=len(logged) - 1) == response
    assert [item["type"] for item in response["output"]] == ["reasoning"]  # the one that was whole
    rest = events(second, reader.id, starting_after=len(logged) - 1)
    assert rest == payloads[len(logged) :]


# Batches


def batch_of(server: Process, lines: list[Any]) -> Any:
    """A new batch of requests of Chat Completions."""
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    url = f"{server.url}/v1"
    with httpx.Client(verify=NO_TLS, timeout=LONGEST_WAIT) as http:
        form = {"files": {"file": ("lines.jsonl", content)}, "data": {"purpose": "batch"}}
        file = http.post(f"{url}/files", **form).json()["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        created = http.post(f"{url}/batches", json=wanted)
    assert created.status_code == 200, created.text
    return created.json()


def batch_when(server: Process, batch: Any, condition: Callable[[Any], bool]) -> Any:
    """A batch, once the condition holds for it."""
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        url = f"{server.url}/v1/batches/{batch['id']}"
        now = httpx.get(url, timeout=LONGEST_WAIT, verify=NO_TLS).json()
        if condition(now):
            return now
        assert time.monotonic() < deadline, now
        time.sleep(0.01)


@pytest.mark.parametrize("database", ["sqlite", "postgresql_url"])
def test_a_line_with_a_result_is_answered_once_whoever_dies(
    servers: Servers, request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    store = request.getfixturevalue(database)
    delays = {"first": 200, "second": 50, "third": 1}  # the first has not done all before the second starts

    def start(name: str) -> Process:
        script = tmp_path / f"{name}.jsonl"
        script.write_text(json.dumps({"output": f"answered by {name}", "delay_ms": delays[name]}))
        options = ("--engine", "scripted", "--script", str(script), "--parallel", "3")
        return servers.start(store, *options, script=False)

    def done(server: Process, lines: int) -> Any:
        return batch_when(server, batch, lambda now: now["request_counts"]["completed"] >= lines)

    first = start("first")
    message = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    lines = [
        {"custom_id": f"{at}", "method": "POST", "url": "/v1/chat/completions", "body": message}
        for at in range(60)
    ]
    batch = batch_of(first, lines)
    done(first, 1)  # it has the batch
    others = {"second": start("second")} if database != "sqlite" else {}
    counts = {"first": done(others.get("second", first), 3)["request_counts"]["completed"]}
    first.kill()
    second = others.get("second") or start("second")
    counts["second"] = done(second, counts["first"] + 3)["request_counts"]["completed"] - counts["first"]
    second.kill()
    third = start("third")
    ended = batch_when(third, batch, lambda now: now["status"] == "completed")
    content = httpx.get(
        f"{third.url}/v1/files/{ended['output_file_id']}/content", timeout=LONGEST_WAIT, verify=NO_TLS
    )
    metrics = httpx.get(f"{third.url}/metrics", timeout=LONGEST_WAIT, verify=NO_TLS).text

    results = [json.loads(line) for line in content.text.splitlines()]
    said = [each["response"]["body"]["choices"][0]["message"]["content"].split()[-1] for each in results]
    assert sorted(int(each["custom_id"]) for each in results) == list(range(60))
    assert ended["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    # All that was known to be done stays, and a server only answers what is left.
    assert said.count("first") >= counts["first"]
    assert said.count("first") + said.count("second") >= counts["first"] + counts["second"]
    answered = [line for line in metrics.splitlines() if line.startswith("vllm:request_success_total")]
    assert sum(float(line.split()[-1]) for line in answered) == said.count("third") > 0


# Two servers


def test_another_replica_takes_over(servers: Servers, postgresql_url: str, uninterrupted: Any) -> None:
    first = servers.start(postgresql_url)
    before = asking(first, "a story", background=True)
    before.until(10)
    second = servers.start(postgresql_url)
    live, late = following(second, before.id), following(second, before.id, starting_after=5)
    before.until(30)
    first.kill()

    payloads = live.ended()
    assert_the_same(check(payloads), uninterrupted)
    assert late.ended() == payloads[6:]
    seen = before.ended()
    assert payloads[: len(seen)] == seen


def test_another_replica_steers(servers: Servers, postgresql_url: str) -> None:
    """At once, by a notification: no lease ends meanwhile. Either of them answers the next response."""
    first = servers.start(postgresql_url, lease=NEVER)
    reader = asking(first, "endless", background=True)
    reader.until(6)
    second = servers.start(postgresql_url, lease=NEVER)
    taken = steer(second, reader.id, "be brief")
    assert check(reader.ended())["incomplete_details"] == {"reason": "steered"}
    assert text_of(ended(second, taken["response_id"])) == "So be it."


@pytest.mark.parametrize("after", [3] if CI else [0, 3])
def test_another_replica_cancels(servers: Servers, postgresql_url: str, after: int) -> None:
    first = servers.start(postgresql_url, lease=NEVER)
    reader = asking(first, "endless", background=True)
    reader.until(3 + after)
    second = servers.start(postgresql_url, lease=NEVER)
    cancelled = post(second, "", path=f"/responses/{reader.id}/cancel")
    assert cancelled["status"] == "cancelled"
    payloads = reader.ended()
    assert check(payloads) == cancelled
    assert get(second, reader.id) == cancelled


def test_a_replica_follows_on_the_same_file(servers: Servers, sqlite: str, uninterrupted: Any) -> None:
    first, second = servers.start(sqlite), servers.start(sqlite)
    response_id = post(first, "a story", background=True)["id"]
    assert_the_same(check(following(second, response_id).ended()), uninterrupted)
    cancelled = post(second, "endless", background=True)["id"]
    following(second, cancelled).until(6)
    assert post(first, "", path=f"/responses/{cancelled}/cancel")["status"] == "cancelled"


# Stopped


def stop_at_once(server: Process, signum: int) -> None:
    """The second signal does not wait for readers; one at a time, for two at once may count as one."""
    url = server.url
    server.send(signum)
    server.until(lambda: refuses(url))
    server.send(signum)
    server.ended()
    assert server.stderr == ""


@pytest.mark.parametrize("signum", [signal.SIGTERM] if CI else [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_gives_its_work_back(
    servers: Servers, sqlite: str, uninterrupted: Any, signum: int
) -> None:
    first = servers.start(sqlite, lease=NEVER)
    response_id = post(first, "a story", background=True)["id"]
    reader = following(first, response_id)
    reader.until(10)
    stop_at_once(first, signum)
    before = reader.ended()

    second = servers.start(sqlite, lease=NEVER)
    payloads = events(second, response_id)
    assert_the_same(check(payloads), uninterrupted)
    told = [payload for payload in before if b"sequence_number" in payload]
    assert payloads[: len(told)] == told


def test_another_replica_goes_on_at_once(servers: Servers, postgresql_url: str, uninterrupted: Any) -> None:
    first = servers.start(postgresql_url, lease=NEVER)
    response_id = post(first, "a story", background=True)["id"]
    second = servers.start(postgresql_url, lease=NEVER)
    reader = following(second, response_id)
    reader.until(10)
    first.send(signal.SIGTERM)
    first.ended()
    assert first.stderr == ""
    assert_the_same(check(reader.ended()), uninterrupted)


def test_a_foreground_stream_ends_with_the_server(servers: Servers, sqlite: str) -> None:
    first = servers.start(sqlite, lease=NEVER)
    reader = asking(first, "endless")
    reader.until(10)
    stop_at_once(first, signal.SIGINT)
    payloads = reader.ended()
    assert check(payloads)["status"] == "failed"
    second = servers.start(sqlite, lease=NEVER)
    assert events(second, reader.id) == payloads


# Without a database


@contextmanager
def full_disk(server: Process, store: str) -> Iterator[None]:
    """No file of the server grows beyond what the log of its database has by now."""
    pid = server.pid
    size = Path(store.removeprefix("sqlite:///") + "-wal").stat().st_size
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(CI, reason="it waits for half a minute: make test")
def test_a_full_disk_is_told_and_survived(servers: Servers, sqlite: str, uninterrupted: Any) -> None:
    server = servers.start(sqlite)
    kept = post(server, "Hi")
    reader = asking(server, "a story", background=True)
    reader.until(10)
    with full_disk(server, sqlite):
        for more in ({}, {"background": True}, {"stream": True}):
            assert post(server, "Hi", status=503, **more)["error"]["code"] == "store_error"
        assert text_of(post(server, "Hi", store=False)) == "Hello there, friend!"
        assert get(server, kept["id"]) == kept
    assert get(server, kept["id"]) == kept
    assert text_of(post(server, "Hi")) == "Hello there, friend!"
    assert_the_same(check(events(server, reader.id)), uninterrupted)
    assert check(reader.ended())["status"] == "completed"


def test_a_database_that_is_lost_comes_back(
    servers: Servers,
    postgresql_server: Any,
    postgresql_url: str,
    uninterrupted: Any,
) -> None:
    server = servers.start(postgresql_url)
    kept = post(server, "Hi")
    reader = asking(server, "a story", background=True)
    reader.until(10)
    postgresql_server.stop()
    try:
        # A new answer would wait for the database, and the story would not be written in time.
        assert get(server, kept["id"], status=503)["error"]["code"] == "store_error"
        assert text_of(post(server, "Hi", store=False)) == "Hello there, friend!"
        assert httpx.get(f"{server.url}/health", verify=NO_TLS).json()["status"] == "ready"
    finally:
        postgresql_server.start()
    assert get(server, kept["id"]) == kept
    assert text_of(post(server, "Hi")) == "Hello there, friend!"
    assert_the_same(check(reader.ended()), uninterrupted)


# The bundled model


def test_the_bundled_model_goes_on(servers: Servers, sqlite: str) -> None:
    options = ("--context", "1024", *ALONE, "--model-name", "scripted")
    body = {"background": True, "temperature": 0, "max_output_tokens": 96}
    first = servers.start(sqlite, *options, script=False)
    whole = check(asking(first, "Tell me a story of a fox.", **body).ended())
    reader = asking(first, "Tell me a story of a fox.", **body)
    reader.until(24)
    first.kill()
    before = reader.ended()
    assert json.loads(before[-1])["type"] == "response.output_text.delta"

    second = servers.start(sqlite, *options, script=False)
    payloads = events(second, reader.id)
    last = check(payloads)

    said = "".join(json.loads(payload).get("delta", "") for payload in before)
    assert payloads[: len(before)] == before
    assert text_of(last).startswith(said)
    assert len(text_of(last)) > len(said)
    assert (last["status"], last["usage"]["output_tokens"]) == (whole["status"], 96)
    assert last["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    print("the same as without an interruption:", text_of(last) == text_of(whole))
    print(said, "|", text_of(last)[len(said) :])
