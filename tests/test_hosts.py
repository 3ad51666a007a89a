"""A program that runs an engine for all processes of a server: who lives and dies with whom."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import antiphon
from tests.engines import linked_toy
from tests.search import CI
from tests.test_processes import get, post, wait
from tests.test_serve import ask, said

ROOT = Path(antiphon.__file__).parents[2]
_PROGRAM = (
    "import sys; from antiphon.processes import hosts; hosts.SPARES = 1; "
    "from antiphon.cli import main; sys.exit(main(sys.argv[1:]))"
)


class Server:
    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        self._files = folder / "out", folder / "err"
        options = ("--port", "0", "--processes", "2", "--chat-template", "chatml")
        options += ("--store", "none", "--journal", str(self.journal))
        out, err = (path.open("w") for path in self._files)
        with out, err:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _PROGRAM, "serve", "--engine", linked_toy.__name__, *options],
                stdout=out,
                stderr=err,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "XDG_DATA_HOME": str(folder)},
            )

    @property
    def out(self) -> str:
        return self._files[0].read_text()

    @property
    def err(self) -> str:
        return self._files[1].read_text()

    @property
    def events(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def until(self, what: Callable[[], object]) -> None:
        def now() -> bool:
            assert self.process.poll() is None, self.err
            return bool(what())

        wait(now)

    @property
    def url(self) -> str:
        self.until(lambda: "listening on" in self.out)
        [url] = re.findall(r"listening on (\S+)", self.out)
        return str(url)

    def running(self, module: str) -> set[int]:
        pid = self.process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return {child for child in children if module in Path(f"/proc/{child}/cmdline").read_text()}

    def ended(self) -> int:
        return self.process.wait(60)


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def answers(server: Server) -> str:
    return said(post(f"{server.url}/v1/chat/completions", {**ask("a"), "model": "toy", "max_tokens": 3}))


def test_requests_of_the_dead_are_forgotten_and_all_start_again_when_no_links_are_left(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server:
        assert answers(server)
        [host], before = server.running("antiphon.host"), server.running("http.process")
        assert server.events == ["load"]
        one, other = sorted(before)
        os.kill(one, signal.SIGKILL)
        server.until(lambda: server.err.count("a process is ready") == 1)
        assert server.events[0] == "load"
        assert re.fullmatch(r"forget (\d): \[100\1\]", server.events[1])
        assert server.running("antiphon.host") == {host}
        os.kill(other, signal.SIGKILL)
        server.until(lambda: server.events.count("load") == 2)  # no spare is left
        server.until(lambda: server.err.count("a process is ready") == 3)
        assert answers(server)
        assert server.events.count("close") == 1
        assert server.running("antiphon.host") != {host}
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
        assert server.events[-1] == "close"
        assert "Traceback" not in server.err


@pytest.mark.skipif(CI, reason="takes half a minute: leave out CI=1")
def test_an_engine_that_dies_is_started_again_and_three_deaths_end_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert answers(server)
        before = server.running("http.process")
        server.journal.with_suffix(".end").touch()
        server.until(lambda: server.err.count("a process is ready") == 2)
        assert "an engine has died" in server.err
        assert not before & server.running("http.process")
        assert server.events.count("load") == 2
        assert answers(server)
        [host] = server.running("antiphon.host")
        os.kill(host, signal.SIGKILL)
        server.until(lambda: server.err.count("a process is ready") == 4)
        assert answers(server)
        server.journal.with_suffix(".end").touch()
        assert server.ended() == 1
        assert "3 processes of this server have died within a minute" in server.err


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "journal.fail").touch()
    with serving(tmp_path) as server:
        assert server.ended() == 1
        assert "antiphon: The toy is broken. Buy another one." in server.err


def test_an_engine_ends_with_the_last_process(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert get(f"{server.url}/health").status_code == 200
        [host], processes = server.running("antiphon.host"), server.running("http.process")
        for process in processes:
            os.kill(process, signal.SIGSTOP)  # as if they had long answers
        server.process.kill()
        time.sleep(1)
        meanwhile = server.events
        for process in processes:
            os.kill(process, signal.SIGCONT)
        assert meanwhile == ["load"]
        wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (host, *processes)))
        assert server.events[-1] == "close"
