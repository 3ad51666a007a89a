"""Starts the servers to compare, each in its own process, and ends them in any case."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, cast

from msgspec import Struct

from bench.scenario import MODEL, PLANS

_ROOT = Path(__file__).parent.parent
_START_SECONDS = 60
_STOP_SECONDS = 5
_LOG_BYTES = 4096
"""Of the log of a server, if something fails."""


class Server(Struct, frozen=True):
    """A server that listens."""

    name: str
    pid: int
    port: int


@contextmanager
def both() -> Iterator[tuple[Server, Server]]:
    """Antiphon with the scripted engine, and the floor."""
    with (
        antiphon() as command,
        running("antiphon", command) as server,
        running("floor", ("-m", "bench.floor")) as floor,
    ):
        yield server, floor


@contextmanager
def antiphon(lines: Iterable[bytes] = tuple(plan.line for plan in PLANS)) -> Iterator[tuple[str, ...]]:
    """Python's arguments for Antiphon with these lines of a script, which is there while the block runs."""
    with TemporaryDirectory(prefix="antiphon-bench-") as folder:
        script = Path(folder) / "script.jsonl"
        script.write_bytes(b"\n".join(lines))
        serve = "import sys; from antiphon.cli import main; sys.exit(main(sys.argv[1:]))"
        options = ("--engine", "scripted", "--script", str(script), "--model-name", MODEL)
        yield ("-c", serve, "serve", *options, "--port", "0", "--store", "memory")


@contextmanager
def running(
    name: str, arguments: tuple[str, ...], under: tuple[str, ...] = (), tree: Path | None = None
) -> Iterator[Server]:
    """A server in a process of its own, while the block runs: Python with these arguments, `under` a tool.

    Its packages are those of `tree`, if they are there.
    """
    # The user's own settings must not change the results.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    if tree is not None:
        environment["PYTHONPATH"] = str(tree)
    with TemporaryFile() as log:  # a line for each request, which is read only if the server fails
        process = subprocess.Popen(  # noqa: S603
            [*under, sys.executable, *arguments],
            cwd=_ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        output = cast("IO[bytes]", process.stdout)  # a pipe
        try:
            yield Server(name, process.pid, _port(name, output))
        except Exception as error:
            log.seek(0)
            error.add_note(log.read()[-_LOG_BYTES:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(name: str, output: IO[bytes]) -> int:
    """The port from the line `listening on http://127.0.0.1:PORT`, the first that a server prints."""
    with DefaultSelector() as selector:
        selector.register(output, EVENT_READ)
        line = output.readline() if selector.select(_START_SECONDS) else b""
    if not line.startswith(b"listening on "):
        raise RuntimeError(f"{name} did not start: it said {line!r}")
    return int(line.strip().rpartition(b":")[2])
