"""llama.cpp's own HTTP server, which is what llama-server is, as a process."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xllamacpp

KEY = "llama-key"


@contextmanager
def serving(model: Path, *, slots: int, context: int, encoder: Path | None = None) -> Iterator[str]:
    """The URL of a server, which is killed in the end. `encoder` is the file by which it takes images."""
    with running(model, slots=slots, context=context, encoder=encoder) as (url, _):
        yield url


@contextmanager
def running(
    model: Path, *, slots: int, context: int, encoder: Path | None = None, adapters: Sequence[Path] = ()
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The URL of a server and its process, which is killed in the end."""
    command = [sys.executable, __file__, str(model), str(slots), str(context), str(encoder or "")]
    command += map(str, adapters)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            assert url.startswith("http://127.0.0.1:")
            yield url, process
        finally:
            process.kill()


def main(model: str, slots: int, context: int, encoder: str, *adapters: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.mmproj.path = encoder
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in adapters]
    settings = {
        "n_ctx": context * slots,
        "n_parallel": slots,
        "n_batch": 256,
        "n_ubatch": 256,
        "verbosity": 0,
    }
    local = {"hostnames": ["127.0.0.1"], "port": 0, "api_keys": [KEY], "ui": False, "sse_ping_interval": -1}
    for name, value in (settings | local).items():
        setattr(params, name, value)
    params.cpuparams.n_threads = 1  # two wait for each other where tests run side by side
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
