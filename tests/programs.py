"""Python programs that tests run, each a process of its own, see `program_runner.py`."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

Ended = tuple[int, str, str]
"""The exit code of a program, and what it printed."""
Run = Callable[..., Awaitable[Ended]]
"""Runs a program with these arguments."""
SECONDS = 100
"""A bound for a busy machine, not what a program takes."""


class Programs:
    """Runs programs, one after the other."""

    def __init__(self, runner: "subprocess.Popen[str]", folder: Path) -> None:
        self._runner = runner
        self._out, self._err = folder / "stdout", folder / "stderr"

    async def ended(self, *command: str, **env: str) -> Ended:
        """How a program ended: `command` are the arguments of Python, `env` is added to the environment."""
        assert self._runner.stdin is not None
        assert self._runner.stdout is not None
        for file in (self._out, self._err):
            file.write_bytes(b"")
        job = {
            "command": command,
            "env": {**os.environ, **env},
            "out": str(self._out),
            "err": str(self._err),
        }
        self._runner.stdin.write(f"{json.dumps(job)}\n")
        self._runner.stdin.flush()
        code = await asyncio.wait_for(asyncio.to_thread(self._runner.stdout.readline), SECONDS)
        return int(code), self._out.read_text(), self._err.read_text()

    async def run(self, *command: str, **env: str) -> str:
        """What a program prints. Fails with its stderr if it fails."""
        code, out, err = await self.ended(*command, **env)
        assert code == 0, err
        return out


@contextmanager
def programs_after(*modules: str, folder: Path) -> Iterator[Programs]:
    """Runs programs in processes that have imported these modules already."""
    command = (sys.executable, str(Path(__file__).with_name("program_runner.py")), *modules)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:  # noqa: S603
        yield Programs(runner, folder)


def simulation(package: str) -> Any:
    """A fixture for the tests of a module: runs the simulation in this package, with options."""

    @pytest.fixture(scope="module")
    def simulate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
        with programs_after(f"{package}.warm", folder=tmp_path_factory.mktemp("programs")) as runs:
            yield partial(runs.ended, "-m", package)

    return simulate
