"""What one rendering may use: CPU time and memory.

Everything that a template makes (a sum, a call's result, a list, a printed
piece) passes `Meter.charge` once, which counts it and looks at the clock.
Before an operation whose result can be far larger than its operands runs,
`Meter.afford` is asked with a bound of that result (see `bounds`).

A container also has a weight: its size if every shared part were written out.
A list that holds another one twice, and so on forty times, is small in memory
and endless when printed or compared; its weight says so. A weight is found
once, when the container is made, from those of its parts, and stays true
because a template can change nothing that exists.

Sizes are estimates in bytes that count a character as one (Python needs one to
four), so the true peak may be some times higher.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from time import monotonic, thread_time
from typing import Any

TIME_LIMIT = 1.0
"""Seconds of CPU time for one rendering. Waiting for other threads is not counted."""

BASE_ALLOWANCE = 16 * 2**20
"""Bytes that any rendering may make."""

ALLOWANCE_PER_BYTE = 32
"""Bytes that it may make for each byte of what it renders: copies of the text, and copies of those."""

OBJECT_SIZE = 64
"""Bytes that any object is counted with, beside what it holds."""

SLOT_SIZE = 8
"""Bytes that a container needs for each of its parts, beside the part."""

SHORT = 256
"""Strings up to this many characters are counted even if they were there before: looking costs more."""


class LimitError(Exception):
    """The template used more time or memory than a rendering may."""


class Meter:
    """Counts one rendering of `variables`, and raises `LimitError` once it has used too much.

    What is rendered costs nothing; the more there is, the more may be made.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        # Weights by id. What they belong to is kept, or its id could be given to something else.
        self._weights: dict[int, int] = {}
        self._kept: list[Any] = []
        self._spent = 0
        self._allowance: float = inf
        given = self.weigh(dict(variables))
        self._allowance = BASE_ALLOWANCE + ALLOWANCE_PER_BYTE * given
        self._spent = 0
        self._started = thread_time()
        self._deadline = monotonic() + TIME_LIMIT

    def charge(self, value: Any) -> Any:
        """Count what the template has made, and give it back."""
        if monotonic() > self._deadline:
            self._look_closer()
        kind = type(value)
        if kind is str:
            if len(value) <= SHORT or id(value) not in self._weights:
                self.spend(OBJECT_SIZE + len(value))
        elif value is not None and kind is not bool and id(value) not in self._weights:
            self._count(value)
        return value

    def _count(self, value: Any) -> None:
        if isinstance(value, list | tuple | dict):
            self._admit(value)
        else:
            self.spend(self.weigh(value))

    def spend(self, size: int) -> None:
        """Count `size` bytes as made."""
        self._spent += size
        if self._spent > self._allowance:
            raise LimitError(f"{self._spent} bytes made, {self._allowance:.0f} allowed")

    def afford(self, bound: float) -> None:
        """Fail unless something of up to `bound` bytes may still be made."""
        if self._spent + bound > self._allowance:
            raise LimitError(f"{bound} bytes asked for, {self._allowance - self._spent:.0f} left")

    def weigh(self, value: Any) -> int:
        """Bytes that `value` would take if all its shared parts were written out."""
        if isinstance(value, str | bytes):
            return OBJECT_SIZE + len(value)
        if isinstance(value, int):
            return OBJECT_SIZE + value.bit_length() // 8
        if not isinstance(value, list | tuple | dict):
            return OBJECT_SIZE
        return self._weights.get(id(value)) or self._admit(value)

    def _admit(self, container: Any) -> int:
        """Weigh a container that is new here, and count it together with the strings that came with it."""
        weight = made = OBJECT_SIZE + SLOT_SIZE * len(container)
        for part in _parts(container):
            size = self.weigh(part)
            weight += size
            if size > SHORT and isinstance(part, str) and id(part) not in self._weights:
                self._weights[id(part)] = size
                made += size
        self.spend(made)
        self.afford(weight)
        self._weights[id(container)] = weight
        self._kept.append(container)
        return weight

    def each(self, parts: Iterable[Any]) -> Iterator[Any]:
        """The parts, with a look at the clock before each."""
        for part in parts:
            if monotonic() > self._deadline:
                self._look_closer()
            yield part

    def collect(self, parts: Iterable[Any]) -> list[Any]:
        """The parts as a list, each counted as it comes."""
        return [self.charge(part) for part in parts]

    def printed(self, text: str) -> str:
        """Count text that goes out, even if it was there before: it is copied for good."""
        if monotonic() > self._deadline:
            self._look_closer()
        self.spend(OBJECT_SIZE + len(text))
        return text

    def _look_closer(self) -> None:
        """The wall clock says that time is up, but the process may just have been busy elsewhere."""
        used = thread_time() - self._started
        if used >= TIME_LIMIT:
            raise LimitError(f"{used:.1f} s used, {TIME_LIMIT} allowed")
        self._deadline = monotonic() + TIME_LIMIT - used


def _parts(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return container  # type: ignore[no-any-return]
