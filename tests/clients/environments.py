"""An environment of its own for each client, made when a test first needs it and kept for the next time.

One resolve with several of these clients takes minutes and ends in a version that
nobody runs, so each has its own virtual environment or npm folder, below `CACHE`.
`ENVIRONMENTS` pins what is installed. A program of `programs/` runs in one of them,
with little else: it speaks to one server, under one key, and prints JSON.

To add a real client: its pins here, a program in `tests/clients/programs/`, and its ways in `WAYS`
(`tests/clients/test_programs.py`).
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(__file__).parents[2] / ".venv-clients"
PROGRAMS = Path(__file__).parent / "programs"
INSTALL_SECONDS = 600
RUN_SECONDS = 90
OUT_OF_REACH = re.compile(".*(?:connection broken by|ECONNREFUSED|ENOTFOUND|EAI_AGAIN|ETIMEDOUT).*")
"""The line that pip or npm writes when there is no registry to ask."""


class Environment(ABC):
    """`packages`, each pinned, in the folder `name` of the cache."""

    def __init__(self, name: str, *packages: str) -> None:
        self.name = name
        self.folder = CACHE / name
        self.packages = packages

    def ready(self) -> None:
        """Install what is not installed yet. Skips the test if npm is not here or a registry out of reach."""
        stamp = self.folder / "installed.txt"
        wanted = "\n".join(self.packages)
        CACHE.mkdir(exist_ok=True)
        # One at a time. Installers hold the lock, too: one whose tests were killed continues for a while.
        with (CACHE / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if stamp.exists() and stamp.read_text() == wanted:
                return
            stamp.unlink(missing_ok=True)  # first: a folder that is half deleted, or half made, has none
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            for step in self.steps():
                _check(*step, lock=lock.fileno())
            stamp.write_text(wanted)

    async def run(
        self, program: str, *arguments: str, key: str, home: Path, seconds: int = RUN_SECONDS
    ) -> Any:
        """What a program prints, read as JSON. Fails with its stderr if it fails."""
        process = await asyncio.create_subprocess_exec(
            *self.command(program),
            *arguments,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "OPENAI_API_KEY": key},
            cwd=home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), seconds)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            await process.wait()
            pytest.fail(f"{program} did not end within {seconds} seconds")
        assert process.returncode == 0, err.decode()
        return json.loads(out)

    @abstractmethod
    def steps(self) -> list[list[str]]:
        """The commands that install the packages into the empty folder."""

    @abstractmethod
    def command(self, program: str) -> list[str]:
        """The command that runs a program of `programs/`."""


class Python(Environment):
    """A virtual environment."""

    def steps(self) -> list[list[str]]:
        pip = [str(self._python), "-m", "pip", "--disable-pip-version-check", "-q"]
        return [[sys.executable, "-m", "venv", str(self.folder)], [*pip, "install", *self.packages]]

    def command(self, program: str) -> list[str]:
        return [str(self._python), "-I", str(PROGRAMS / f"{program}.py")]

    @property
    def _python(self) -> Path:
        return self.folder / "bin" / "python"


class Pinned(Python):
    """A virtual environment with what a file of requirements lists, and nothing that this asks for besides."""

    def __init__(self, name: str, requirements: Path) -> None:
        super().__init__(name, *requirements.read_text().splitlines())
        self.requirements = requirements

    def steps(self) -> list[list[str]]:
        make, install = super().steps()
        listed = ["--no-deps", "--requirement", str(self.requirements)]
        return [make, [*install[: -len(self.packages)], *listed]]


class Node(Environment):
    """A folder with `node_modules`; `binary` is the program of a package that brings one for each platform.

    These are optional dependencies: npm says nothing of one that it could not fetch.
    """

    def __init__(self, name: str, *packages: str, binary: str | None = None) -> None:
        super().__init__(name, *packages)
        self.binary = binary

    def steps(self) -> list[list[str]]:
        if shutil.which("npm") is None:
            pytest.skip("npm is not here")
        steps = [["npm", "install", "--prefix", str(self.folder), "--no-audit", "--no-fund", *self.packages]]
        if self.binary is not None:
            steps.append([str(self.folder / "node_modules" / ".bin" / self.binary), "--version"])
        return steps

    def command(self, program: str) -> list[str]:
        # A module is searched in the folder of the program that imports it.
        return ["node", shutil.copy(PROGRAMS / f"{program}.mjs", self.folder)]


class Java(Environment):
    """Nothing but a JDK, which runs a program from its source."""

    def steps(self) -> list[list[str]]:
        if shutil.which("javac") is None:
            pytest.skip("there is no JDK here: apt-get install default-jdk-headless")
        return [["javac", "--version"]]

    def command(self, program: str) -> list[str]:
        return ["java", str(PROGRAMS / f"{program}.java")]


def _check(*command: str, lock: int) -> None:
    """Run a step of an installation. It holds the lock of that file descriptor while it runs."""
    done = subprocess.run(  # noqa: S603
        command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS, pass_fds=(lock,)
    )
    if done.returncode != 0 and (line := OUT_OF_REACH.search(done.stderr)):
        pytest.skip(f"the registry is out of reach: {line[0]}")
    assert done.returncode == 0, done.stderr


ENVIRONMENTS: dict[str, Environment] = {
    environment.name: environment
    for environment in (
        Python("openai-python", "openai==3.52.0"),
        Python("openai-agents", "openai-agents==0.24.0"),
        Python("langchain", "langchain-openai==1.7.3"),
        Python("instructor", "instructor==1.17.0"),
        Python("anthropic-python", "anthropic==2.12.0"),
        Python("anthropic-python-0", "anthropic==0.125.0"),
        Python("ollama-python", "ollama==0.6.3"),
        Python("langchain-ollama", "langchain-ollama==1.1.0"),
        Python("llm-comply", "llm-comply==0.5.0", "jsonschema==4.26.0"),
        Python("typesafe-sdk", "typesafe-sdk[zstd]==0.7.5"),
        Python("jevcompat", "jevcompat==0.1.1", "typesafe-sdk==0.7.5"),
        Pinned("open-webui", Path(__file__).with_name("open-webui-requirements.txt")),
        Java("java-http", "17"),
        Node("openai-js", "openai@7.55.0"),
        Node("ollama-js", "ollama@0.6.4"),
        Node("anthropic-js", "@anthropic-ai/sdk@1.12.0"),
        Node(
            "ai-sdk",
            "ai@6.0.326",
            "@ai-sdk/anthropic@3.0.138",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/openai-compatible@2.0.87",
            "@ai-sdk/open-responses@1.0.39",
            "zod@4.6.7",
        ),
        Node("codex", "@openai/codex@0.169.0", binary="codex"),
        Node("claude-code", "@anthropic-ai/claude-code@2.1.197", binary="claude"),
        Node("opencode", "opencode-ai@1.18.33", binary="opencode"),
        Node("pi", "@mariozechner/pi-coding-agent@0.73.1", binary="pi"),
        Node("qwen", "@qwen-code/qwen-code@0.24.4", binary="qwen"),
    )
}
