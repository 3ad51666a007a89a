"""Streams of servers with `--durable-streams` that are killed: clients read on elsewhere, and miss no event.

Real processes: `antiphon serve`, killed with SIGKILL at random moments, on SQLite and on PostgreSQL. `make test-durable`
kills more of them.
"""

import json
import os
import random
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, DefaultHttpxClient, OpenAI
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.response_invariants import check
from tests.server import NO_TLS
from tests.server_process import Process, serving
from tests.test_processes import SOURCE, children
from tests.test_takeover import (
    LONGEST_WAIT,
    SOON,
    Reader,
    Servers,
    asking,
    ended,
    events,
    following,
    get,
    python,
    text_of,
)

STREAMS = int(os.environ.get("ANTIPHON_TEST_STREAMS", "20"))
"""Streams that lose their server, for each database."""
AT_ONCE = 24
"""As many are begun before a server is killed."""
LONGEST = 1.6
"""Seconds: a little less than the longest of them takes."""

FACTS = " ".join(f"{number} is {'odd' if number % 2 else 'even'}," for number in range(12))
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京 🌍", "days": [1, 2, 3]}}\n</tool_call>'
)
SCRIPT: list[dict[str, Any]] = [
    {"when": "it is 42", "output": "So it is 42, and \U0001f44b\U0001f3fd to you.", "delay_ms": 25},
    {"when": "kept", "output": "<think>Go on.</think>" + python("print('it is', x + 1)"), "delay_ms": 25},
    {"when": "count", "output": "<think>Hm.</think>" + python("x = 41\nprint('ke' + 'pt')"), "delay_ms": 25},
    {"when": "weather", "output": f"<think>Where is it? {FACTS}</think>Let me look.\n{CALL}", "delay_ms": 20},
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 20},
    {"output": f"<think>Which one?</think>Numbers: {FACTS} and so on.", "delay_ms": 25},
]  # fmt: skip
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("a story", {}),
    ("the weather", {"tools": [WEATHER]}),
    ("count", {"tools": [INTERPRETER]}),
]
OPTIONS = ("--durable-streams", "--code-interpreter", "--dialect", "hermes")


class DurableServers(Servers):
    """The same with durable streams, and their script."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        (folder / "script.jsonl").write_text("\n".join(json.dumps(line) for line in SCRIPT))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[DurableServers]:
    with ExitStack() as stack:
        yield DurableServers(tmp_path, stack)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


_ID = re.compile("[a-z]+_[0-9a-f]{16,}")
_TIMES = ("created_at", "completed_at")


def shape(payloads: list[bytes]) -> list[Any]:
    """Events without times, with ids that are numbered in the order of their appearance.

    Consecutive deltas are one: how many there are depends on how busy the machine is.
    """
    numbers: dict[str, str] = {}
    events: list[Any] = []
    for payload in payloads:
        event = json.loads(
            _ID.sub(lambda found: numbers.setdefault(found[0], f"id-{len(numbers)}"), payload.decode())
        )
        del event["sequence_number"]
        event.get("response", {}).update(dict.fromkeys(_TIMES))
        last = events[-1] if events else None
        if last and "delta" in event and event | {"delta": ""} == last | {"delta": ""}:
            last["delta"] += event["delta"]
        else:
            events.append(event)
    return events


def number_of(payload: bytes) -> int:
    return int(json.loads(payload)["sequence_number"])


class LoyalClient:
    """Reads a stream, and reads on at whichever server is there when it breaks off."""

    def __init__(self, server: Callable[[], Process], given: str, more: dict[str, Any]) -> None:
        self._server = server
        self._given = given
        self._more = more
        self.payloads: list[bytes] = []
        self.broken_after: list[int] = []
        """The numbers of the last events before its connections broke."""

    def read(self, later: float = 0.0) -> list[bytes]:
        """Read all of it, `later` seconds from now."""
        time.sleep(later)
        deadline = time.monotonic() + LONGEST_WAIT
        while not (self.payloads and json.loads(self.payloads[-1])["type"] in ENDS):
            assert time.monotonic() < deadline, self.payloads[-1:]
            reader = self._reader(self._server())
            got = reader.ended()
            self.payloads += got
            if got:
                self.broken_after.append(number_of(got[-1]))
            time.sleep(0.05)
        del self.broken_after[-1]  # there it has ended
        return self.payloads

    def _reader(self, server: Process) -> Reader:
        if not self.payloads:  # nothing is stored of an answer that had not begun
            return asking(server, self._given, **self._more)
        response_id = json.loads(self.payloads[0])["response"]["id"]
        return following(server, response_id, starting_after=number_of(self.payloads[-1]))


ENDS = ("response.completed", "response.incomplete", "response.failed")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The shapes of the streams of a server that lives, without the option."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with ExitStack() as stack:
        server = DurableServers(folder, stack).start(f"sqlite:///{folder}/store.db", *OPTIONS[1:])
        readers = [asking(server, given, **more) for given, more in REQUESTS]
        for reader in readers:
            check(reader.ended())
        return [shape(reader.payloads) for reader in readers]


def numbers_in(store: str) -> dict[str, int]:
    """The number of the last stored event of each response, if the store is a file."""
    if not store.startswith("sqlite"):
        return {}
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as database:
        return dict(database.execute("SELECT id, last_seq FROM responses").fetchall())


@pytest.mark.parametrize("database", ["sqlite", "postgresql_url"])
@pytest.mark.timeout(60 + 20 * STREAMS)
def test_killed_at_random_moments(
    servers: DurableServers, undisturbed: list[Any], request: pytest.FixtureRequest, database: str
) -> None:
    """Each client gets each event once: what it gets altogether is an undisturbed stream, and is what is stored.

    On SQLite the server is started again; on PostgreSQL another one is there already, and the next takes its place.
    """
    store, seed = request.getfixturevalue(database), random.randrange(2**32)
    print("seed", seed)  # of a test that failed
    moments, broken = random.Random(seed), 0
    spare = 1 if database == "postgresql_url" else 0
    alive = [servers.start(store, *OPTIONS) for _ in range(1 + spare)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while broken < STREAMS:
            kinds = [number % len(REQUESTS) for number in range(AT_ONCE)]
            assert alive[0].url  # it listens
            begun = time.monotonic()
            clients = [LoyalClient(lambda: alive[0], *REQUESTS[kind]) for kind in kinds]
            reading = [pool.submit(client.read, moments.uniform(0, LONGEST)) for client in clients]
            time.sleep(max(0.0, begun + moments.uniform(LONGEST, 1.2 * LONGEST) - time.monotonic()))
            alive[0].kill()
            stored = numbers_in(store)
            alive.append(servers.start(store, *OPTIONS))
            del alive[0]
            for client, read, kind in zip(clients, reading, kinds, strict=True):
                payloads = read.result(LONGEST_WAIT)
                assert [number_of(payload) for payload in payloads] == [*range(len(payloads))]
                check(payloads)
                assert shape(payloads) == undisturbed[kind]
                response_id = json.loads(payloads[0])["response"]["id"]
                assert events(alive[0], response_id) == payloads
                broken += len(client.broken_after)
                if stored and client.broken_after:
                    assert client.broken_after[0] <= stored[response_id]
    print(f"{broken} streams were broken off")


def test_a_process_of_several_is_killed(tmp_path: Path, undisturbed: list[Any]) -> None:
    """Any process is asked for the rest: the one that is left, or its successor."""
    (tmp_path / "script.jsonl").write_text("\n".join(map(json.dumps, SCRIPT)))
    engine = ("--engine", "scripted", "--script", str(tmp_path / "script.jsonl"))
    options = ("--port", "0", "--processes", "2", "--lease-seconds", SOON, *engine, *OPTIONS)
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, *options, PYTHONPATH=SOURCE))
        assert server.url  # it listens
        pool = stack.enter_context(ThreadPoolExecutor(4))
        clients = [LoyalClient(lambda: server, *REQUESTS[0]) for _ in range(4)]
        reading = [pool.submit(client.read) for client in clients]
        time.sleep(LONGEST / 3)
        os.kill(min(children(server)), signal.SIGKILL)
        streams = [read.result(LONGEST_WAIT) for read in reading]
    assert [shape(payloads) for payloads in streams] == [undisturbed[0]] * 4
    assert any(client.broken_after for client in clients)


def test_a_client_that_does_not_come_back(servers: DurableServers, sqlite: str) -> None:
    """The next server goes on for as long as the client may be away: what ends until then is complete."""
    first = servers.start(sqlite, *OPTIONS, "--stall-seconds", "2")
    short, long = asking(first, "a story"), asking(first, "endless")
    short.until(8), long.until(8)
    first.kill()

    second = servers.start(sqlite, *OPTIONS, "--stall-seconds", "2")
    assert (ended(second, short.id)["status"], ended(second, long.id)["status"]) == ("completed", "cancelled")
    payloads = events(second, long.id)
    check(payloads)
    assert payloads[: len(long.payloads)] == long.payloads
    assert json.loads(payloads[-1])["response"]["incomplete_details"] == {"reason": "cancelled"}


def test_a_server_that_stops_leaves_its_streams_to_others(servers: DurableServers, sqlite: str) -> None:
    """The client is told to read on, with an event that has no number."""
    first = servers.start(sqlite, *OPTIONS, "--drain-seconds", "0.1")
    reader = asking(first, "a story")
    reader.until(8)
    second = servers.start(sqlite, *OPTIONS)
    assert second.url  # it runs
    first.send(signal.SIGTERM)
    *got, last = reader.ended()
    told = json.loads(last)
    assert (told["type"], told["code"], "sequence_number" in told) == ("error", "engine_not_ready", False)
    payloads = got + events(second, reader.id, starting_after=len(got) - 1)
    check(payloads)
    assert payloads == events(second, reader.id)


def test_a_turn_of_a_websocket_goes_on_over_http(servers: DurableServers, sqlite: str) -> None:
    first = servers.start(sqlite, *OPTIONS)
    payloads: list[bytes] = []
    with connect(first.url.replace("http", "ws") + "/v1/responses") as socket:
        socket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "a story"}))
        while len(payloads) < 12:
            payloads.append(socket.recv(decode=False))
        first.kill()
        try:
            while True:
                payloads.append(socket.recv(decode=False))
        except ConnectionClosed:
            pass
    second = servers.start(sqlite, *OPTIONS)
    response_id = json.loads(payloads[0])["response"]["id"]
    payloads += events(second, response_id, starting_after=len(payloads) - 1)
    check(payloads)
    assert events(second, response_id) == payloads


def openai(server: Process) -> OpenAI:
    http = DefaultHttpxClient(verify=NO_TLS)
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http)


def test_openais_client_reads_on(servers: DurableServers, sqlite: str) -> None:
    """As its helper for streams does it: `starting_after` is the number of the last event that it has got."""
    first = servers.start(sqlite, *OPTIONS)
    seen: list[Any] = []

    def read(client: OpenAI) -> None:
        for event in client.responses.create(model="scripted", input="a story", stream=True):
            seen.append(event)
            if len(seen) == 12:
                first.kill()

    with openai(first) as client, pytest.raises(APIConnectionError):
        read(client)
    second = servers.start(sqlite, *OPTIONS)
    response_id, last = seen[0].response.id, seen[-1].sequence_number
    with (
        openai(second) as client,
        client.responses.stream(response_id=response_id, starting_after=last) as stream,
    ):
        seen += [*stream]
        final = stream.get_final_response()
    assert [event.sequence_number for event in seen] == [*range(len(seen))]
    assert final.output_text == text_of(get(second, response_id)) == f"Numbers: {FACTS} and so on."
