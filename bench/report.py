"""The common report of the benches: the machine, and figures with their limits."""

import os
import platform
from collections.abc import Iterable, Iterator

from msgspec import Struct

from antiphon import __version__


class Machine(Struct, frozen=True):
    """Where the figures were taken."""

    antiphon: str
    python: str
    cores: int
    load: float

    @classmethod
    def here(cls) -> "Machine":
        """This machine."""
        load = round(os.getloadavg()[0], 2)
        return cls(__version__, platform.python_version(), os.cpu_count() or 0, load)


class Target(Struct, frozen=True):
    """The worst figure that counts for a target, and the most that it may be."""

    name: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """The figure is within the limit."""
        return self.value <= self.limit

    @property
    def share(self) -> float:
        """The figure as a multiple of the limit."""
        return round(self.value / self.limit, 2)


def target_table(targets: Iterable[Target]) -> Iterator[str]:
    """The lines for people with figures and limits."""
    yield from ("", f"{'target':58}{'figure':>9}{'limit':>8}{'of limit':>10}")
    for target in targets:
        figures = f"{target.value:9.2f}{target.limit:8g}{target.share:10.2f}"
        yield f"{target.name:58}{figures}  {'met' if target.met else 'MISSED'}"
