"""Who reads durable streams on this server: while somebody does, on any server, they are not cancelled.

The row of such a response has the time until which it is worked on. Each server with a reader moves that
time forward, several times within `--stall-seconds`: whichever server dies, a client has that long to return.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.store.watch import Signal

RENEWALS = 4
"""How often within `--stall-seconds` a server says that a response is read."""


def read_until(now: float, stall_seconds: float) -> float:
    """The time until which a response that is read now goes on, if the server says so again in time.

    A client that leaves just before that has all of `stall_seconds`.
    """
    return now + stall_seconds * (1 + 1 / RENEWALS)


class Readers:
    """The durable streams that are read on this server. `came` is set when one has a new reader."""

    def __init__(self) -> None:
        self._numbers = Counter[str]()
        self.came = Signal()

    @contextmanager
    def reading(self, response_id: str, *, known: bool = False) -> Iterator[None]:
        """Somebody reads the response while the block runs; `known` if its row says so already."""
        self._numbers[response_id] += 1
        if not known:
            self.came.set()
        try:
            yield
        finally:
            self._numbers[response_id] -= 1
            if not self._numbers[response_id]:
                del self._numbers[response_id]

    def until(self, now: float, stall_seconds: float) -> dict[str, float]:
        """For each response that is read, the time until which it goes on."""
        return dict.fromkeys(self._numbers, read_until(now, stall_seconds))
