"""A plugin of pytest for the tests of llama.cpp's server: `antiphon serve` stands for llama-server.

It replaces `ServerProcess.start` of their `utils.py`. The model is the bundled one. Servers with the same options
are one server, which outlives the test: it is stopped when others are needed, or at the end.
"""

import atexit
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import requests
import utils

SECONDS = 120
"""The most that a server may take to start."""
SERVERS = 5
"""How many servers run at the same time."""

Option = Callable[[Any, Any], list[str]]
"""What stands for an option of theirs: the server's own, and its value → ours."""


@cache
def _file(text: str, suffix: str) -> str:
    """A file with a text, which is removed at the end."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix, delete=False) as file:
        file.write(text)
    atexit.register(os.unlink, file.name)
    return file.name


def _template(text: str) -> str:
    """What `--chat-template` gets for a template. Raises RuntimeError for the name of one of llama-server's own."""
    if text != "chatml" and "{" not in text and " " not in text:
        raise RuntimeError(f"{text} is a template that is built into llama-server")
    return text if text == "chatml" else _file(text, ".jinja")


OPTIONS: Mapping[str, Option] = {
    "n_ctx": lambda server, tokens: ["--context", str(tokens // (server.n_slots or 1))],
    "n_slots": lambda server, count: ["--parallel", str(count)],
    "n_predict": lambda server, tokens: ["--max-tokens", str(tokens)] if tokens > 0 else [],
    "temperature": lambda server, value: ["--sampling", f"temperature={value}"],
    "model_alias": lambda server, names: [
        *(part for name in names.split(",") for part in ("--model-name", name)),
        *("--default-model", names.split(",")[0]),
    ],
    "api_key": lambda server, key: ["--api-key", key],
    "chat_template": lambda server, text: ["--chat-template", _template(text)],
    "chat_template_file": lambda server, path: ["--chat-template", str(Path(path).resolve())],
    "server_embeddings": lambda server, wanted: ["--task", "embed"] if wanted else [],
    "seed": lambda server, number: [] if server.server_embeddings else ["--sampling", f"seed={number}"],
    "reasoning": lambda server, wanted: (
        [] if wanted == "auto" else ["--variable", f"enable_thinking={'true' if wanted == 'on' else 'false'}"]
    ),
}
"""Their options that have a counterpart."""

WITHOUT_EFFECT = {
    *("debug", "server_port", "external_server", "offline", "jinja", "n_batch", "n_ubatch", "fa", "pooling"),
    *("server_metrics", "server_slots", "server_continuous_batching", "server_reranking", "kv_unified"),
    *("model_hf_repo", "model_hf_file", "cache_prompt"),
}
"""Their options that change nothing that a client sees, and those of the model, which is another one."""

_running: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], int]] = {}
"""Options → the server that runs with them, and its port; the one that was used last is the last."""


def start(server: Any, timeout_seconds: int = SECONDS) -> None:
    """Start a server with the options that ours stand for. Raises RuntimeError if one has no counterpart."""
    chosen = {name: value for name, value in vars(server).items() if value is not None}
    if unknown := chosen.keys() - OPTIONS.keys() - WITHOUT_EFFECT:
        raise RuntimeError(f"nothing stands for {', '.join(sorted(unknown))}")
    options = _options(server, chosen)
    process, port = _running.pop(options, None) or _started(options)
    _running[options] = process, port
    server.server_port = port


def _options(server: Any, chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """Ours for theirs. The scripted engine ranks: the bundled model cannot."""
    if server.server_reranking:
        script = _file('{"output": ""}', ".jsonl")
        names = OPTIONS["model_alias"](server, server.model_alias)
        return ("--engine", "scripted", "--script", script, *names)
    return tuple(part for name in OPTIONS if name in chosen for part in OPTIONS[name](server, chosen[name]))


def _started(options: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    """A new server with these options, and its port."""
    while len(_running) >= SERVERS:
        _ended(_running.pop(next(iter(_running)))[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [os.environ["SUITE_PYTHON"], "-m", "antiphon", "serve", "--port", str(port)]
    # Several wait for each other on a busy machine.
    threads = () if "--engine" in options else ("--threads", "1")
    process = subprocess.Popen(  # noqa: S603
        [*command, "--store", "memory", "--log-level", "error", *threads, *options], stdout=subprocess.DEVNULL
    )
    atexit.register(_ended, process)
    ends = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < ends:
        try:
            if requests.get(f"http://127.0.0.1:{port}/ready", timeout=5).ok:
                return process, port
        except requests.RequestException:
            pass
        time.sleep(0.1)
    _ended(process)
    raise RuntimeError(f"the server does not start with {' '.join(options)}")


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


utils.ServerProcess.start = start
utils.ServerProcess.stop = lambda server: None
utils.ServerPreset.load_all = staticmethod(lambda: None)  # it downloads models
