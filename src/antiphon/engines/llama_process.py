"""llama.cpp in its own process: loads a model, and serves it on a loopback port.

There are three reasons for the process. xllamacpp holds Python's global interpreter lock while it loads and
frees a model, which would stop a server for seconds. The end of a process frees all of its memory. And
llama.cpp ends its process if a request makes an assertion fail. The process ends when the server closes its
standard input, or has ended itself.

The process also runs this file, so it imports xllamacpp, and nothing of Antiphon.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

LOADING_SECONDS = 5.0
"""Seconds between two lines of the log while a model loads."""

CLOSE_SECONDS = 5.0
"""How long the process may take to end before it is killed."""

MEMORY = "memory"
"""The argument of a process that only says how much memory there is."""

MEMORY_SECONDS = 20.0
"""How long it may take to say that."""

VERBOSITY = 4
"""The log level at which llama.cpp reports how much memory it takes. It writes nothing per token."""

_ERROR = re.compile(r"^[\d.]+ E [^:]*: +(?P<text>.*)$")
_MEMORY = re.compile(r"buffer size = +(?P<mib>[\d.]+) MiB")
_STAGES = {
    "loading model": "opening the file",
    "loading model tensors": "reading the weights",
    "llama_context: constructing": "reserving memory",
    "warming up": "warming up",
}
"""Lines of llama.cpp that show the progress of loading."""


class LoadError(Exception):
    """The model could not be loaded, for this reason, in llama.cpp's words."""


class LlamaProcess:
    """A process with a loaded model. `url` and `key` lead to its HTTP server; `memory` is in bytes."""

    url: str

    def __init__(self, process: asyncio.subprocess.Process, key: str) -> None:
        self.key = key
        self.memory = 0
        self._process = process
        self._rest = ""
        self._errors: list[str] = []
        self.stage = "starting"
        self._reading = asyncio.create_task(self._read())
        self._closing = False

    @classmethod
    async def start(cls, settings: Mapping[str, Any], report: Callable[[str, float], None]) -> "LlamaProcess":
        """Start one with these `settings` of llama.cpp, by their paths in xllamacpp's `CommonParams`.

        While it loads, `report` is called with the current step, and the seconds so far. Raises LoadError.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", __file__),  # -P: modules in this folder must not hide others
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server, which ends this process last
        )
        key = secrets.token_urlsafe(24)
        loading = cls(process, key)
        try:
            await loading._load({**settings, "api_keys": [key]}, report)
        except BaseException:
            await loading.close()
            raise
        return loading

    async def _load(self, settings: Mapping[str, Any], report: Callable[[str, float], None]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):  # it has ended: the log says why
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            await self._process.stdin.drain()
        answer = asyncio.ensure_future(self._process.stdout.readline())
        seconds = 0.0
        try:
            while not (await asyncio.wait((answer,), timeout=LOADING_SECONDS))[0]:
                seconds += LOADING_SECONDS
                report(self.stage, seconds)
        finally:
            answer.cancel()
        self.url = answer.result().decode().strip()
        if not self.url:
            await self._reading
            code = await self._process.wait()
            raise LoadError(self._errors[0] if self._errors else f"its process ended with code {code}")
        self._errors.clear()

    async def ended(self) -> str | None:
        """Wait until it has ended; returns why, or None if it was closed."""
        await self._reading
        code = await self._process.wait()
        return None if self._closing else "; ".join((f"code {code}", *self._errors[-1:]))

    async def close(self) -> None:
        """End it, and what runs in it."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        """Read the log of llama.cpp, which would block without a reader."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(65536):
            *lines, self._rest = (self._rest + piece.decode(errors="replace")).split("\n")
            for line in lines:
                self._line(line)
        self._line(self._rest)  # of a process that has died: it may say why

    def _line(self, line: str) -> None:
        if error := _ERROR.match(line):
            self._errors = [*self._errors[-9:], error["text"].strip()]
        elif memory := _MEMORY.search(line):
            self.memory += int(float(memory["mib"]) * 1024 * 1024)
        else:
            self.stage = next((stage for words, stage in _STAGES.items() if words in line), self.stage)


async def total_memory() -> int | None:
    """The bytes of main and graphics memory that llama.cpp could use at most; None if that is unknown."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", __file__, MEMORY),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(MEMORY_SECONDS):
            answer, _ = await process.communicate()
        return int(answer)
    except (TimeoutError, ValueError):
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def main() -> None:
    """The main function of the process."""
    import xllamacpp  # noqa: PLC0415 - an optional extra

    if MEMORY in sys.argv:
        print(sum(device["memory_total"] for device in xllamacpp.get_device_info()))
        return
    params = xllamacpp.CommonParams()
    params.verbosity = VERBOSITY
    for path, value in json.loads(sys.stdin.readline()).items():
        *outer, name = path.split(".")
        holder = params
        for part in outer:
            holder = getattr(holder, part)
        setattr(holder, name, _value(xllamacpp, name, value))
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        sys.exit(1)  # unlike `os._exit`, it waits for the thread that writes the log, which says why
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # the system frees the memory faster than llama.cpp


def _value(xllamacpp: Any, name: str, value: Any) -> Any:
    """A value of the settings, converted to a type of xllamacpp."""
    match name:
        case "lora_adapters":  # without effect, where a request does not name them
            return [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in value]
        case "cache_type_k" | "cache_type_v":
            return xllamacpp.ggml_type[f"GGML_TYPE_{value.upper()}"]
        case "flash_attn_type":
            return xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{value}"]
        case "pooling_type":
            return xllamacpp.llama_pooling_type[f"LLAMA_POOLING_TYPE_{value}"]
        case "types":
            return [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind}"] for kind in value]
        case _:
            return value


if __name__ == "__main__":
    main()
