"""The processes of this machine, for tests that look for those that should have ended."""

import asyncio
import os
import subprocess
from pathlib import Path

from msgspec import Struct

PATIENCE = 30.0
"""Seconds until a process that must have ended counts as running."""


class Process(Struct, frozen=True):
    pid: int
    parent: int
    state: str
    said: str
    """Its command, or the name of its program."""

    @property
    def zombie(self) -> bool:
        return self.state.startswith("Z")


def _processes(field: str) -> list[Process]:
    command = ["ps", "-A", "-o", f"pid=,ppid=,stat=,{field}="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    fields = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    return [Process(int(pid), int(parent), state, "".join(rest)) for pid, parent, state, *rest in fields]


def children(program: str) -> list[Process]:
    """The processes that this one has begun, zombies too, by the name of their program.

    Not by a word in their command: the path of this folder, which may be any, is in many commands.
    """
    begun = [each for each in _processes("comm") if each.parent == os.getpid()]
    return [each for each in begun if Path(each.said.removesuffix(" <defunct>")).name == program]


def alive(program: str) -> frozenset[int]:
    """The ids of the processes with this program that this one has begun, and that have not ended."""
    return frozenset(each.pid for each in children(program) if not each.zombie)


def running(words: str) -> list[Process]:
    """The processes of anyone whose commands are just that."""
    return [each for each in _processes("args") if each.said == words and not each.zombie]


async def until_there_are(count: int, words: str) -> None:
    """Wait until this number of processes with this command run."""
    async with asyncio.timeout(PATIENCE):
        while len(running(words)) != count:  # other processes give no notice of their end
            await asyncio.sleep(0.01)
