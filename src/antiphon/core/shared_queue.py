"""What the processes of a server tell each other of one engine, whose slots they share.

`engines/shared_admission.py` decides by it, `processes/table.py` keeps it in shared memory.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from antiphon.core.permits import Elsewhere


class Standing(NamedTuple):
    """How a client stands with one process. All are 64-bit numbers."""

    client: int
    """The checksum of its name."""
    counter: int
    """The tokens that this process has served it: its counter is the sum over all processes."""
    begun: int
    """The part of this that is of answers which run."""
    waiting: int = 0
    """How many of its requests wait with this process; if any, the next two concern them."""
    priority: int = 0
    """The least of their priorities."""
    since: int = 0
    """When the first of those with this priority came, in nanoseconds of a clock that all processes have."""


class SharedQueue(Elsewhere, Protocol):
    """The slots of an engine, and those who wait for one, in all processes; `running` is without this one.

    Nothing is locked: what others do is seen a moment later.
    """

    own: int
    """The number of this process."""
    clients: int
    """For how many clients a process has room."""
    on_free: Callable[[], None]
    """Called when a slot is free that may be for this process."""

    def tell(self, running: int, waiting: int) -> None:
        """Tell how many slots are given here, and how many requests wait."""
        ...

    def told(self, process: int) -> int:
        """How often a process has told this."""
        ...

    def publish(self, standing: Standing) -> None:
        """Tell how a client stands with this process."""
        ...

    def forget(self, client: int) -> None:
        """Tell nothing of a client any more."""
        ...

    def standings(self) -> Sequence[tuple[int, Standing]]:
        """How all clients stand with all processes, also with those that have ended; and with which."""
        ...

    def total(self, client: int) -> tuple[int, int]:
        """The counter of a client over all processes, and the part that is of answers which run."""
        ...

    @property
    def floor(self) -> int:
        """The largest that any process has raised it to."""
        ...

    def raise_floor(self, floor: int) -> None:
        """Raise it, if it is less: the counter of those that were served last."""
        ...

    def ring(self, process: int) -> None:
        """Have `on_free` called in another process."""
        ...

    def later(self, call: Callable[[], None]) -> None:
        """Call this when other processes have had time to take a free slot."""
        ...


def checksum(name: str) -> int:
    """The checksum of a client's name, which is the same in all processes."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1
