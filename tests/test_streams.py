"""Streams survive their process: it is killed at random moments, and every byte is as if it had not been."""

import http.client
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest

from antiphon.core.shared_limits import PLACE_SECONDS
from antiphon.engines.models import resolve
from tests.engines import llama_http
from tests.server_process import Process
from tests.test_processes import children, log, post, several

STREAMS = int(os.environ.get("STREAMS", "0"))
"""How many streams are killed, at least one of each kind: `make test-streams` takes 40, five times."""
SEED = int(os.environ.get("SEED", "1"))
LONG = pytest.mark.skipif(not STREAMS, reason="make test-streams")

pytest_plugins = ("tests.postgresql",)

TEXT = " ".join(f"wörd{number} 🙂" for number in range(120))
CALLS = (
    '<think>Some thoughts about it.</think><tool_call>\n{"name": "f", "arguments": {"a": "'
    + "x " * 60
    + '"}}\n</tool_call>'
)
SCRIPT = [
    {"when": "call it", "output": CALLS, "delay_ms": 10},
    {"output": TEXT, "delay_ms": 10},
]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
BODIES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 1}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "stream_options": {"include_usage": True}},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "call it"}],
            "tools": [{"type": "function", "function": TOOL}],
        },
    ),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 500}),
    ("/v1/responses", {"input": "Hi", "store": False}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}),
    ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}]}),
]


def normal(data: bytes) -> str:
    """Without ids and times, which differ between two requests.

    While a response is being stored, its first deltas are merged, as many as come: so those of responses are all
    merged here. Their numbers have to have no gaps.
    """
    text = re.sub(r"(chatcmpl-|cmpl-|msg_|resp_|rs_|fc_|call_|ctc_|req_)\w+", r"\1", data.decode())
    text = re.sub(
        r'("(?:created|created_at|completed_at|total_duration|load_duration|prompt_eval_duration|eval_duration)":\s?)("[^"]*"|[\d.]+)',
        r"\1",
        text,
    )
    text = re.sub(
        r'("(?:cached_tokens|input_tokens|cache_read_input_tokens|cache_creation_input_tokens)":)\d+',
        r"\1",
        text,
    )
    if (
        '"index":1' in text and '"choices":' in text
    ):  # how the events of choices alternate is nobody's promise
        text = "\n\n".join(sorted(text.split("\n\n"), key=lambda event: '"index":1' in event))
    numbers = [int(number) for number in re.findall(r'"sequence_number":(\d+)', text)]
    if not numbers:
        return text
    assert numbers == [*range(len(numbers))]
    deltas = "".join(json.loads(f'"{delta}"') for delta in re.findall(r'"delta":"((?:[^"\\]|\\.)*)"', text))
    others = [part for part in text.split("\n\n") if '"delta":' not in part]
    return re.sub(r'"sequence_number":\d+', "", "\n".join((deltas, *others)))


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def read(
    url: str, path: str, body: Any, pause: float = 0, headers: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    sent = json.dumps({"model": "scripted", "stream": True, **body})
    data = b""
    with closing(connection):
        connection.request("POST", path, sent, {"content-type": "application/json", **headers})
        with connection.getresponse() as response:
            if response.status == 503:
                raise NotReadyError
            assert response.status == 200, response.read()
            while part := response.read1(512):  # raises IncompleteRead if the framing is not whole
                data += part
                time.sleep(pause)
    return data


def read_again(url: str, path: str, body: Any) -> bytes:
    """As SDKs do after a connection without a response, or a 503, for as long as the model is made ready."""
    for _ in range(100):
        with suppress(http.client.RemoteDisconnected, NotReadyError):
            return read(url, path, body)
        time.sleep(0.1)
    raise NotReadyError


class NotReadyError(Exception):
    """The server refuses a request for now."""


def _difference(one: str, other: str) -> tuple[str, str]:
    """Both, from shortly before where they differ."""
    same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, same - 60)
    return one[start : start + 200], other[start : start + 200]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=LONG)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def server(tmp_path: Path, store: str) -> Iterator[Process]:
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(json.dumps(line) for line in SCRIPT))
    with several(tmp_path, "--engine", "scripted", "--script", str(script), "--store", store) as process:
        assert process.url
        yield process


def kill_one(server: Process) -> None:
    os.kill(min(children(server)), signal.SIGKILL)


def check_killed(
    server: Process, bodies: Sequence[tuple[str, Any]], count: int, pauses: Sequence[float] = (0, 0.02)
) -> None:
    """Two processes are killed, one after the other, while so many requests are answered: all are equal.

    If nothing has come of a response, its client asks again, as those of the APIs do.
    """
    rng = random.Random(SEED)
    with ThreadPoolExecutor(len(bodies)) as threads:
        whole = [normal(one) for one in threads.map(lambda body: read(server.url, *body), bodies)]
    chosen = [*range(len(bodies))] if count <= len(bodies) else rng.choices(range(len(bodies)), k=count)
    wrong: list[Any] = []
    with ThreadPoolExecutor(len(chosen)) as threads:
        answers = [threads.submit(read, server.url, *bodies[index], rng.choice(pauses)) for index in chosen]
        for low, high in ((0.3, 0.8), (0.2, 1.2)):
            time.sleep(rng.uniform(low, high))
            kill_one(server)
        for index, answer in zip(chosen, answers, strict=True):
            try:
                data = normal(answer.result())
            except (http.client.RemoteDisconnected, NotReadyError):
                data = normal(read_again(server.url, *bodies[index]))
            except Exception as error:
                wrong.append((bodies[index], repr(error)))
                continue
            if data != whole[index]:
                wrong.append((bodies[index], _difference(data, whole[index])))
    assert not wrong, (wrong, re.findall(r".*(?:breaks off|error).*", log(server)))
    assert log(server).count("a stream is resumed") >= len(chosen) // 2


def test_streams_go_on_where_their_processes_were_killed(server: Process) -> None:
    check_killed(server, BODIES, STREAMS)


def test_streams_end_with_their_process_where_that_is_chosen(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"output": TEXT, "delay_ms": 20}))
    options = ("--engine", "scripted", "--script", str(script), "--no-resume-streams", "--store", "none")
    with several(tmp_path, *options) as server, ThreadPoolExecutor(1) as threads:
        stream = threads.submit(read, server.url, "/v1/chat/completions", {"messages": said("Hi")})
        time.sleep(0.5)
        for process in children(server):
            os.kill(process, signal.SIGKILL)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            stream.result()
        assert "a stream is resumed" not in log(server)


@LONG
@pytest.mark.timeout(600)
def test_streams_of_real_models_go_on(tmp_path: Path) -> None:
    """Two servers of llama.cpp, which choose the same tokens again."""
    with ExitStack() as stack:
        urls = [
            stack.enter_context(llama_http.serving(resolve(None), slots=4, context=1024)) for _ in range(2)
        ]
        options = (
            urls[0],
            "--upstream-key",
            llama_http.KEY,
            "--replica",
            urls[1],
            "--model-name",
            "scripted",
        )
        server = stack.enter_context(several(tmp_path, *options))
        more = {"max_tokens": 120, "temperature": 0}
        check_killed(
            server,
            [
                ("/v1/chat/completions", {"messages": said("Tell me about the sea."), **more}),
                ("/v1/completions", {"prompt": "Once upon a time", **more}),
                ("/v1/messages", {"messages": said("Write about a fox."), **more}),
                ("/v1/responses", {"input": "Why is it cold?", "temperature": 0, "max_output_tokens": 120}),
            ],
            8,
        )


KEY = """
[[keys]]
name = "ann"
value = "anns"
concurrent = 2
tokens_per_minute = 10000
"""


@LONG
def test_the_account_of_a_key_goes_on_with_its_streams(tmp_path: Path) -> None:
    """A stream that goes on keeps its place, which is free when it has ended."""
    keys, script = tmp_path / "keys.toml", tmp_path / "script.jsonl"
    keys.write_text(KEY)
    lines = {"when": "slow", "output": TEXT, "delay_ms": 60}, {"output": "Hi"}
    script.write_text("\n".join(map(json.dumps, lines)))
    options = ("--engine", "scripted", "--script", str(script), "--keys", str(keys))
    key = {"authorization": "Bearer anns"}
    slow = {"messages": said("slow"), "max_tokens": 4000}
    with several(tmp_path, *options) as server, ThreadPoolExecutor(2) as threads:
        path = "/v1/chat/completions"

        def status(max_tokens: int) -> int:
            body = {"model": "scripted", "messages": said("Hi"), "max_tokens": max_tokens}
            return post(server.url + path, body, **key).status_code

        streams = [threads.submit(read, server.url, path, slow, headers=key) for _ in range(2)]
        time.sleep(1)
        for process in children(server):
            os.kill(process, signal.SIGKILL)
        server.until(lambda: log(server).count("a stream is resumed") == 2)
        time.sleep(PLACE_SECONDS)  # those of the dead have come back
        assert status(1) == 429
        assert all(b"[DONE]" in stream.result() for stream in streams)
        server.until(lambda: status(1) == 200, PLACE_SECONDS)
