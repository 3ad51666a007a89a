"""The processes of this machine, for tests that look for those that should have ended."""

import asyncio
import os
import subprocess

from msgspec import Struct

PATIENCE = 30.0
"""Seconds until a process that must have ended counts as running."""


class Process(Struct, frozen=True):
    pid: int
    parent: int
    state: str
    command: str

    @property
    def zombie(self) -> bool:
        return self.state.startswith("Z")


def processes() -> list[Process]:
    command = ["ps", "-A", "-o", "pid=,ppid=,stat=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    fields = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    return [Process(int(pid), int(parent), state, "".join(rest)) for pid, parent, state, *rest in fields]


def children(word: str) -> list[Process]:
    """The processes that this one has begun, with a word in their command."""
    return [each for each in processes() if each.parent == os.getpid() and word in each.command]


def running(words: str) -> list[Process]:
    """The processes of anyone whose commands are just that."""
    return [each for each in processes() if each.command == words and not each.zombie]


async def until_there_are(count: int, words: str) -> None:
    """Wait until this number of processes with this command run."""
    async with asyncio.timeout(PATIENCE):
        while len(running(words)) != count:  # other processes give no notice of their end
            await asyncio.sleep(0.01)
