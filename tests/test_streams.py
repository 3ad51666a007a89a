"""Streams survive their process: it is killed at random moments, and every byte is as if it had not been."""

import http.client
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server_process import Process
from tests.test_processes import children, log, several

STREAMS = int(os.environ.get("STREAMS", "8"))
"""How many streams are killed: `make test-streams` takes 40, five times."""

TEXT = " ".join(f"wörd{number} 🙂" for number in range(60))
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
    numbers = [int(number) for number in re.findall(r'"sequence_number":(\d+)', text)]
    if not numbers:
        return text
    assert numbers == [*range(len(numbers))]
    deltas = "".join(json.loads(f'"{delta}"') for delta in re.findall(r'"delta":"((?:[^"\\]|\\.)*)"', text))
    others = [part for part in text.split("\n\n") if '"delta":' not in part]
    return re.sub(r'"sequence_number":\d+', "", "\n".join((deltas, *others)))


def read(url: str, path: str, body: Any, pause: float = 0) -> bytes:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    connection.request(
        "POST",
        path,
        json.dumps({"model": "scripted", "stream": True, **body}),
        {"content-type": "application/json"},
    )
    response = connection.getresponse()
    assert response.status == 200
    data = b""
    while part := response.read1(512):  # raises IncompleteRead if the framing is not whole
        data += part
        time.sleep(pause)
    connection.close()
    return data


def _difference(one: str, other: str) -> tuple[str, str]:
    """Both, from shortly before where they differ."""
    same = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, same - 60)
    return one[start : start + 200], other[start : start + 200]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(json.dumps(line) for line in SCRIPT))
    with several(tmp_path, "--engine", "scripted", "--script", str(script)) as process:
        assert process.url
        yield process


def test_streams_go_on_where_their_process_was_killed(server: Process) -> None:
    with ThreadPoolExecutor(len(BODIES)) as threads:
        whole = [normal(one) for one in threads.map(lambda body: read(server.url, *body), BODIES)]
    rng = random.Random(int(os.environ.get("SEED", "1")))
    chosen = (
        [rng.randrange(len(BODIES)) for _ in range(STREAMS)]
        if len(BODIES) < STREAMS
        else [*range(len(BODIES))]
    )
    with ThreadPoolExecutor(len(chosen)) as threads:
        answers = [
            threads.submit(read, server.url, *BODIES[index], rng.choice((0, 0.02))) for index in chosen
        ]
        time.sleep(rng.uniform(0.3, 0.8))
        os.kill(min(children(server)), signal.SIGKILL)
        wrong: list[Any] = []
        for index, answer in zip(chosen, answers, strict=True):
            try:
                data = answer.result()
            except Exception as error:
                wrong.append((BODIES[index], repr(error)))
                continue
            if normal(data) != whole[index]:
                wrong.append((BODIES[index], _difference(normal(data), whole[index])))
    resumed = log(server).count("a stream is resumed")
    print(resumed, "of", STREAMS, "resumed,", len(wrong), "wrong")
    print(*wrong, sep="\n")
    assert not wrong, re.findall(r".*(?:breaks off|error).*", log(server))
    assert resumed >= len(chosen) // 3
