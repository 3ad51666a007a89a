"""Two processes with one core of a real vLLM, as `antiphon serve --processes 2` runs them: `make test-vllm`."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engines.lora import write_peft_adapter
from tests.real_engine import START_SECONDS, VLLM_ARGUMENTS, VLLM_MODEL
from tests.server_process import Process
from tests.test_processes import SOURCE, children, client_of, connected, get, log, post
from tests.test_serve import ask, said

pytestmark = [
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]
ADMIN = {"authorization": "Bearer admin"}
STORY = "Tell a long story about a fox."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("vllm")
    arguments = (*VLLM_ARGUMENTS, "enable_lora=true", "max_lora_rank=8")
    vllm = [word for argument in arguments for word in ("--vllm", argument)]
    options = (
        "--port",
        "0",
        "--processes",
        "2",
        "--context",
        "2048",
        "--parallel",
        "4",
        "--admin-key",
        "admin",
    )
    process = Process(folder, "--engine", "vllm", VLLM_MODEL, *options, *vllm, PYTHONPATH=SOURCE)
    try:
        process.until(lambda: "listening on" in process.stdout, START_SECONDS)
        yield process
        core = cores(process)
        process.send(signal.SIGTERM)
        assert process.ended() == 0
        assert core
        assert not [pid for pid in core if Path(f"/proc/{pid}").exists()]
    finally:
        process.kill()


def below(pid: int) -> set[int]:
    """The child processes of all threads of a process."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return {int(child) for text in texts for child in text.split()}


def program(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def workers(server: Process) -> set[int]:
    return {pid for pid in children(server) if "antiphon.http.process" in program(pid)}


def cores(server: Process) -> set[int]:
    hosts = [pid for pid in children(server) if "antiphon.host" in program(pid)]
    return {pid for host in hosts for pid in below(host) if "VLLM" in Path(f"/proc/{pid}/comm").read_text()}


def healthy(server: Process) -> bool:
    return get(f"{server.url}/health").status_code == 200


def body_of(text: str, model: str = "", **more: Any) -> dict[str, Any]:
    return {**ask(text), "model": model or Path(VLLM_MODEL).name, "temperature": 0, "max_tokens": 12, **more}


def usage(server: Process) -> float:
    """The share of the cache that is in use."""
    [line] = re.findall(
        r"^vllm:kv_cache_usage_perc\S* (\S+)$", get(f"{server.url}/metrics").text, re.MULTILINE
    )
    return float(line)


def test_all_processes_answer_with_one_core(server: Process) -> None:
    assert len(workers(server)) == 2
    assert len(cores(server)) == 1
    url = f"{server.url}/v1/chat/completions"
    answers = {said(post(url, body_of("What is the capital of France?"))) for _ in range(6)}
    assert answers == {"The capital of France is Paris."}
    assert len(set(re.findall(r"completion_tokens.* process=(\d)", log(server)))) == 2
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for _ in range(3):
        answer = said(
            post(url, body_of("What is the capital of France?", max_tokens=40, response_format=form))
        )
        assert json.loads(answer)["city"] in {"Paris", "Rome"}


def test_a_process_that_dies_leaves_nothing_in_the_core_and_adapters_reach_its_successor(
    server: Process, tmp_path: Path
) -> None:
    write_peft_adapter(tmp_path)
    loaded = {"lora_name": "noise", "lora_path": str(tmp_path)}
    assert post(f"{server.url}/v1/load_lora_adapter", loaded, **ADMIN).status_code == 200
    before, restarted = workers(server), log(server).count("a process is ready")
    with ExitStack() as stack:
        streams = []
        for _ in range(4):
            client = stack.enter_context(client_of(server.url))
            body = body_of(STORY, stream=True, max_tokens=1500, ignore_eos=True)
            lines = stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body)).iter_lines()
            next(lines)
            streams.append(lines)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        assert all(goes_on(lines) for lines in streams)  # those of the victim, too, in another process
    server.until(lambda: log(server).count("a process is ready") > restarted, START_SECONDS)
    assert victim not in workers(server)
    texts = set()
    for client in connected(server.url, 6):
        answer = client.post("/v1/chat/completions", json=body_of(STORY, "noise"))
        texts.add(said(answer))
    plain = said(post(f"{server.url}/v1/chat/completions", body_of(STORY)))
    assert len(texts) == 1
    assert texts != {plain}
    # What one short answer takes: the 1500 tokens of the others would take more.
    assert usage(server) <= 0.01
    assert post(f"{server.url}/v1/unload_lora_adapter", {"lora_name": "noise"}, **ADMIN).status_code == 200


def goes_on(lines: Iterator[str]) -> bool:
    """Whether a stream has more."""
    try:
        for _ in range(200):
            next(lines)
    except Exception:
        return False
    return True


def test_a_core_that_dies_is_started_again(server: Process) -> None:
    before = workers(server)
    [core] = cores(server)
    with client_of(server.url) as client:
        body = body_of(STORY, stream=True, max_tokens=1500, ignore_eos=True)
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            killed = time.monotonic()
            os.kill(core, signal.SIGKILL)
            rest = [*lines]
    assert time.monotonic() - killed < 10
    assert any("error" in line for line in rest)
    server.until(lambda: "an engine has died" in log(server))
    assert not healthy(server)
    server.until(lambda: healthy(server), START_SECONDS)
    assert not before & workers(server)
    assert core not in cores(server)
    answer = post(f"{server.url}/v1/chat/completions", body_of("What is the capital of France?"))
    assert said(answer) == "The capital of France is Paris."


def test_vllm_cannot_do_everything_with_several_processes(tmp_path: Path) -> None:
    options = (
        "--port",
        "0",
        "--processes",
        "2",
        "--vllm",
        "enable_elastic_ep=true",
        "--vllm",
        "dtype=bfloat16",
    )
    process = Process(tmp_path, "--engine", "vllm", VLLM_MODEL, *options, PYTHONPATH=SOURCE)
    try:
        assert process.ended(START_SECONDS) == 1
        assert "--vllm enable_elastic_ep needs a server of one process" in process.stderr
    finally:
        process.kill()
