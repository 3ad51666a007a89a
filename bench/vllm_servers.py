"""The servers of the benches in front of vLLM: Antiphon with vLLM in its process, and vLLM's own.

Both are started in the environment of `make test-vllm`, with the same engine arguments and the same model: a
small one of random weights, with the tokenizer of the model that `make test-vllm` makes. The process with the
connections is the one that is started: vLLM computes in others.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from bench.client import Address
from bench.scenario import MODEL

ROOT = Path(__file__).parent.parent
BORROWED = ROOT / ".venv-vllm-0.32" / "model"
"""The model whose tokenizer is used if no other is named."""

START_SECONDS = 600
PROBE_SECONDS = 5
"""How long a server may take to say that it is ready, before it is asked again."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}

ALWAYS = {"dtype": "bfloat16", "load_format": "dummy", "gpu_memory_utilization": "0.2"}
"""Engine arguments of vLLM's that no bench changes."""

Command = Callable[[Address], list[str]]
"""Starts a server that listens there."""


def write_model(folder: Path, tokenizer: Path, config: Mapping[str, Any]) -> Path:
    """Make the folder a model of this configuration, with the tokenizer and the template of another one."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def vllm_command(model: Path, arguments: Mapping[str, str], *options: str) -> Command:
    """Start the server that vLLM has itself."""
    given = [
        word
        for key, value in {**ALWAYS, **arguments}.items()
        for word in ("--" + key.replace("_", "-"), value)
    ]
    server = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--served-model-name", MODEL]
    quiet = ["--disable-log-stats", "--disable-uvicorn-access-log", "--enforce-eager"]
    return lambda address: [
        *server,
        *given,
        *quiet,
        *options,
        *listening(address, "--uds", "--host", "127.0.0.1"),
    ]


def antiphon_command(model: Path, arguments: Mapping[str, str], *options: str) -> Command:
    """Start Antiphon, with vLLM in its process."""
    quiet = ["--engine", "vllm", "--model-name", MODEL, "--log-level", "error"]
    start = [sys.executable, "-m", "antiphon", "serve", str(model)]
    return lambda address: [*start, *engine_words(arguments), *quiet, *options, *listening(address)]


def engine_words(arguments: Mapping[str, str]) -> list[str]:
    """The options of Antiphon's for arguments of vLLM's."""
    given = (*map("=".join, {**ALWAYS, **arguments}.items()), "enforce_eager=true")
    return [word for each in given for word in ("--vllm", each)]


def listening(address: Address, unix: str = "--unix-socket", *local: str) -> list[str]:
    """The options of a server that is to listen there."""
    return [unix, str(address)] if isinstance(address, Path) else [*local, "--port", str(address)]


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(command: Command, address: Address) -> Iterator[int]:
    """The process that has the connections of a server, while the block runs. Raises RuntimeError."""
    environment = {**_environment(), **ENVIRONMENT, "PYTHONPATH": str(ROOT / "src")}
    words = command(address)
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=sys.stderr)  # noqa: S603
    try:
        until = monotonic() + START_SECONDS
        while not _answers(address):
            if process.poll() is not None or monotonic() > until:
                raise RuntimeError(f"{words[0]} did not start")
            sleep(0.5)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """The environment, without settings of Antiphon's or vLLM's: they must not change the results."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("ANTIPHON_", "VLLM_"))}


def _answers(address: Address) -> bool:
    """Whether the server is ready."""
    with socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET) as connection:
        connection.settimeout(PROBE_SECONDS)
        try:
            connection.connect(str(address) if isinstance(address, Path) else ("127.0.0.1", address))
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False
