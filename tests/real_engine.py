"""An engine with a real model: SmolLM2, on llama.cpp, or on vLLM where `make test-vllm` runs the tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest

from antiphon.engines import llama_cpp
from antiphon.engines.engine import Engine
from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.models import resolve
from antiphon.engines.vllm import Options
from tests.search import CI

VLLM_MODEL = os.environ.get("ANTIPHON_TEST_VLLM", "")
"""Where the model is for vLLM, see `engines/vllm_setup.py`."""

VLLM_ARGUMENTS = ("dtype=bfloat16", "enforce_eager=true", "gpu_memory_utilization=0.3")
"""What makes vLLM start soon, and leave memory to others."""

START_SECONDS = 600

long_suite = pytest.mark.skipif(CI and not VLLM_MODEL, reason="takes minutes: leave out CI=1")
"""A suite that CI has no time for: every other run of the tests has it."""


def real_engine(*, context: int, slots: int, more: Sequence[str] = ()) -> Engine:
    """An engine for this number of simultaneous requests; vLLM gets `more` arguments."""
    if VLLM_MODEL:
        return Options(VLLM_MODEL, context=context, parallel=slots, vllm=(*VLLM_ARGUMENTS, *more)).build()
    options = llama_cpp.Options(context=context, parallel=slots, threads=1)
    return LlamaCppEngine(resolve(None), options)


@contextmanager
def vllm_server(model: str, *arguments: str) -> Iterator[str]:
    """The URL of vLLM's own server, with these arguments of the engine in addition to the usual ones."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", model]
    for argument in (*VLLM_ARGUMENTS, *arguments):
        key, _, value = argument.partition("=")
        command += ["--" + key.replace("_", "-"), *([] if value == "true" else [value])]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(  # noqa: S603
        [*command, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "smollm2"],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # for what is ours in it
    ) as process:
        try:
            until = time.monotonic() + START_SECONDS
            while not _answers(f"{address}/health"):
                assert process.poll() is None, "vLLM has ended"
                assert time.monotonic() < until, "vLLM did not start"
                time.sleep(0.5)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # and those that it has started


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except URLError:
        return False
