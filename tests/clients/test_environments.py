"""An environment whose installation did not come to its end is made again."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients import environments
from tests.clients.environments import Environment, Node

ONLY_INTO_AN_EMPTY_FOLDER = """
import pathlib, sys
folder, ended, *packages = sys.argv[1:]
assert not list(pathlib.Path(folder).iterdir())
pathlib.Path(folder, "half").touch()
assert ended == "whole", "cut off"
pathlib.Path(folder, "made").write_text(" ".join(packages))
"""


class Made(Environment):
    """Installed by a program of Python, which ends in the middle unless it is to be whole."""

    def __init__(self, ended: str, *packages: str) -> None:
        super().__init__("made", *packages)
        self.ended = ended

    def steps(self) -> list[list[str]]:
        return [
            [sys.executable, "-c", ONLY_INTO_AN_EMPTY_FOLDER, str(self.folder), self.ended, *self.packages]
        ]

    def command(self, program: str) -> list[str]:
        return [program]

    @property
    def holds(self) -> str:
        return (self.folder / "made").read_text()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "CACHE", tmp_path / "clients")


def test_what_was_cut_off_is_made_anew() -> None:
    with pytest.raises(AssertionError, match="cut off"):
        Made("half", "a==1").ready()
    whole = Made("whole", "a==1")
    whole.ready()
    assert whole.holds == "a==1"


def test_what_is_whole_is_made_once_for_each_list_of_packages() -> None:
    Made("whole", "a==1").ready()
    Made("half", "a==1").ready()  # nothing is run, so nothing is cut off
    other = Made("whole", "a==2")
    other.ready()
    assert other.holds == "a==2"


def test_what_was_whole_is_not_after_another_was_cut_off() -> None:
    Made("whole", "a==1").ready()
    with pytest.raises(AssertionError, match="cut off"):
        Made("half", "a==2").ready()
    again = Made("whole", "a==1")
    again.ready()
    assert again.holds == "a==1"


def test_a_package_without_its_binary_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As npm does when it could not fetch an optional dependency: it ends with 0."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, command[0] != "npm", "", "spawn claude ENOENT")

    monkeypatch.setattr("shutil.which", lambda _: "npm")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(AssertionError, match="ENOENT"):
        Node("claude-code", "claude@1", binary="claude").ready()
    assert not (environments.CACHE / "claude-code" / "installed.txt").exists()
