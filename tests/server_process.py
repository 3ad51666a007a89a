"""The real `antiphon serve`, as a process of its own that tests stop and kill.

Python imports for longer than a server takes to start. So all are forked, with `multiprocessing`, from a process
that has imported them and does nothing else. `tests/test_cli.py` tests that the command that is installed is this one.
"""

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60
EXIT_SECONDS = 60
"""Bounds for a busy machine, not what it takes; an idle connection would be kept longer, and an endless answer too."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.server_imports"])


def _serve(args: tuple[str, ...], env: Mapping[str, str], out: Path, err: Path) -> None:
    """What the command does, in a new process."""
    from antiphon.cli import main  # noqa: PLC0415 - not in the process of the tests, which has no use for it

    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    # Even where the tests themselves run in the background of a shell, which ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(["serve", *args]))


class Process:
    """A server, its output in files: nothing that it writes can block it."""

    def __init__(self, folder: Path, *args: str, **env: str) -> None:
        self._out, self._err = folder / "stdout", folder / "stderr"
        for path in (self._out, self._err):
            path.write_bytes(b"")
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PYTHON"))
        }
        given = (args, clean | {"XDG_DATA_HOME": str(folder)} | env, self._out, self._err)
        self._process = _FORKS.Process(target=_serve, args=given, daemon=True)
        self._process.start()

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """What it complains of: without the lines that only inform."""
        lines = self._err.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if "[info " not in line)

    def until(self, what: Callable[[], bool], seconds: float = EXIT_SECONDS) -> None:
        """Wait until something is so, while the process runs."""
        deadline = time.monotonic() + seconds
        while not what():
            assert self._process.exitcode is None, f"it ended with {self._process.exitcode}: {self.stderr}"
            assert time.monotonic() < deadline, f"not within {seconds} s; {self.stdout!r}, {self.stderr!r}"
            time.sleep(0.01)

    @property
    def url(self) -> str:
        """Where it listens, once it says so."""
        self.until(lambda: self.stdout.count("\n") >= 2, START_SECONDS)
        found = re.match(r"listening on (http://127\.0\.0\.1:\d+)\n", self.stdout)
        assert found, self.stdout
        return found[1]

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def ended(self, seconds: float = EXIT_SECONDS) -> int:
        """The exit code of a process that ends by itself."""
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"it did not end within {seconds} s"
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def serving(folder: Path, *args: str, **env: str) -> Iterator[Process]:
    process = Process(folder, *args, **env)
    try:
        yield process
    finally:
        process.kill()
