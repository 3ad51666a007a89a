"""The toy engine as one that runs once for all processes of a server: it writes down what happens to it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.core.errors import EngineDiedError, EngineError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.links import CoreFacts, Link, Notes
from tests.engines.toy import ToyEngine


@dataclass(frozen=True, kw_only=True)
class Options:
    journal: str = ""
    """The file of what happens; FILE.end ends the engine, FILE.fail lets it not start."""

    def build(self, limits: Limits = DEFAULTS) -> "LinkedEngine":
        return LinkedEngine(limits=limits)

    def host(self, link: Link, inputs: Sequence[str], outputs: Sequence[str]) -> "Host":
        assert len(inputs) == len(outputs)
        return Host(self.journal, link)


class LinkedEngine(ToyEngine):
    def attach(self, link: Link) -> None:
        receiving, sending = link.take()
        assert receiving.getsockname() == link.input.removeprefix("ipc://")
        assert sending.getsockname() == link.output.removeprefix("ipc://")
        assert link.core.loads == "here"
        self.sockets = receiving, sending
        self.notes = Notes(link.memory, link.number)
        self.notes.add(1000 + link.number)  # a request that runs for ever


class Host:
    def __init__(self, journal: str, link: Link) -> None:
        self._journal = Path(journal)
        self._notes = Notes(link.memory, link.number)

    def _write(self, line: str) -> None:
        with self._journal.open("a") as file:
            file.write(line + "\n")

    def _is(self, what: str) -> bool:
        return self._journal.with_suffix(what).exists()

    def load(self, started: Callable[[CoreFacts], None]) -> None:
        if self._is(".fail"):
            raise EngineError("The toy is broken. Buy another one.")
        self._write("load")
        started(CoreFacts(loads="here"))

    async def run(self) -> None:
        while not self._is(".end"):
            await asyncio.sleep(0.02)
        self._journal.with_suffix(".end").unlink()
        raise EngineDiedError

    async def forget(self, number: int) -> None:
        requests = [*self._notes.of(number)]
        if not requests:
            raise EngineError("This one has not run.")
        self._write(f"forget {number}: {requests}")

    def close(self) -> None:
        self._write("close")
