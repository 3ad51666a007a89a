"""vLLM's own server behind the engine for upstreams, on a loopback port: `make test-vllm`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest
import pytest_asyncio

from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import StructuralTag
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.contracts.engine import EngineContract, chunks_of, finish_of, text_of
from tests.real_engine import VLLM_ARGUMENTS, VLLM_MODEL

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

SLOTS = 3
CONTEXT = 2048
START_SECONDS = 600


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def options():
    """The arguments of the engine, on vLLM's command line."""
    for argument in (*VLLM_ARGUMENTS, f"max_num_seqs={SLOTS}", f"max_model_len={CONTEXT}"):
        key, _, value = argument.partition("=")
        yield from ("--" + key.replace("_", "-"), *([] if value == "true" else [value]))


@pytest.fixture(scope="module")
def url():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", VLLM_MODEL, *options()]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(  # noqa: S603
        [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "smollm2"],
        start_new_session=True,
    ) as process:
        try:
            until = time.monotonic() + START_SECONDS
            while not answers(f"{address}/health"):
                assert process.poll() is None, "vLLM has ended"
                assert time.monotonic() < until, "vLLM did not start"
                time.sleep(0.5)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # and those that it has started


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return response.status == 200
    except URLError:
        return False


def engine_at(url, parallel):
    return UpstreamEngine(Options(url, parallel=parallel))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url):
    engine = engine_at(url, SLOTS)
    await engine.start()
    yield engine
    await engine.stop()


class TestContract(EngineContract):
    prompt = chat("Tell a long story about a fox.")
    others = tuple(chat(f"What is the capital of {country}?") for country in ("France", "Japan", "Peru"))
    slots = SLOTS

    @pytest.fixture
    def fresh(self, url):
        return engine_at(url, 1)


async def test_it_is_recognised_and_described(engine):
    assert engine.card.name == "smollm2"
    assert engine.card.context == CONTEXT
    assert "<|im_start|>" in (engine.card.chat_template or "")


async def test_a_structural_tag_holds_the_answer(engine):
    grammar = {"type": "grammar", "grammar": 'root ::= "<" [0-9]{2,4} ">" " é"?'}
    tag = StructuralTag(json.dumps({"type": "structural_tag", "format": grammar}))
    for prompt in TestContract.others:
        chunks = await chunks_of(engine, prompt, 30, constraint=tag)
        assert re.fullmatch("<[0-9]{2,4}>( é)?", text_of(chunks))
        assert finish_of(chunks).reason is FinishReason.STOP
