"""docs/tutorial.md works as it is written: its commands and programs run in order, with the small model.

A fence with a title is a file, one of `console` has commands, and one of `text` what the last of them prints, in
which … stands for anything. `pip` is not run: what it installs is there, and its extras exist.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server_process import Process, serving

pytest.importorskip("xllamacpp")
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
ADDRESS = "http://127.0.0.1:8000"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
SECONDS = 300
"""A bound for a busy machine: it takes half a minute on an idle one."""


class Reader:
    """Does what the page says, in a folder of its own. The servers end with `stack`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._server: Process | None = None
        self._url = ""
        self._printed = ""
        self.done: list[str] = []

    def do(self, language: str, title: str, text: str) -> None:
        """Read a fence."""
        if title:
            (self._folder / title).write_text(text.replace(ADDRESS, self._url))
        elif language == "text":
            shown = ".*".join(map(re.escape, text.strip().split("…")))
            assert re.fullmatch(shown, self._printed.strip(), re.DOTALL), f"{shown!r}: {self._printed!r}"
        else:
            for line in text.replace("\\\n", " ").splitlines():
                self._command(line)

    def _command(self, line: str) -> None:
        program, *words = shlex.split(line)
        self.done.append(program)
        if program == "antiphon":
            self._serve(words)
        elif program in {"curl", "python"}:
            self._run(line)
        elif program == "pip":
            _installable(words)

    def _serve(self, words: list[str]) -> None:
        """Start the server of a command, and end the one before."""
        assert words[0] == "serve"
        if self._server is not None:
            self._server.kill()
        options = [*words[1:], "--port", "0", "--threads", "1"]
        self._server = self._stack.enter_context(serving(self._folder, *options))
        self._url = self._server.url

    def _run(self, line: str) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        result = subprocess.run(  # noqa: S603 - what our own page says
            ["bash", "-ec", line.replace(ADDRESS, self._url)],  # noqa: S607
            cwd=self._folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stderr}"
        assert '"error"' not in result.stdout
        assert result.stdout.strip()
        self._printed = result.stdout


def _installable(words: list[str]) -> None:
    """The extras of our package in a command of pip are there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [named] = [word for word in words if word.startswith("antiphon[")]
    assert set(named.removeprefix("antiphon[").rstrip("]").split(",")) <= extras.keys()


def fences() -> Iterator[tuple[str, str, str]]:
    yield from FENCE.findall(PAGE.read_text())


@pytest.mark.timeout(2 * SECONDS)
def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        for fence in fences():
            reader.do(*fence)

    assert reader.done == [
        "python3",
        "source",
        "pip",
        "antiphon",
        "curl",
        *["python"] * 3,
        "antiphon",
        "python",
    ]
