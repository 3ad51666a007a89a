"""Limits one rendering: CPU time and memory.

Every value that a template creates (a sum, a call's result, a list, a printed
piece) passes `Meter.charge` once, which checks the clock and counts the value.
Before an operation whose result can be far larger than its operands,
`Meter.require` checks a bound of the result (see `bounds`).

Counted are containers, printed text and long strings. Short strings and
numbers are not, unless a container holds them: a template has a bounded number
of variables. When memory runs out, long strings without other references are
subtracted again, so text may be built up piece by piece.

A container also has a weight: its size if every shared part were written out.
A list that holds another one twice, nested forty times, is small in memory but
exponential in size when printed or compared. A weight is computed once, when
the container is created, from those of its parts, and stays valid because the
sandbox allows no mutation.

Sizes are estimates in bytes that count a character as one (Python needs one to
four), so the true peak may be up to four times higher.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from math import inf
from sys import getrefcount
from time import monotonic, thread_time
from typing import Any

BASE_TIME = 1.0
"""Seconds of CPU time for any rendering. Waiting for other threads is not counted."""

TIME_PER_BYTE = 1e-6
"""Additional seconds for each byte of the rendered input."""

BASE_ALLOWANCE = 16 * 2**20
"""Bytes that any rendering may allocate."""

ALLOWANCE_PER_BYTE = 32
"""Additional bytes for each byte of the rendered input: copies of the text, and copies of those."""

OBJECT_SIZE = 64
"""Bytes of any object, without its contents."""

SLOT_SIZE = 8
"""Bytes of one reference in a container."""

SHORT = 256
"""Strings up to this many characters are short."""


class LimitError(Exception):
    """The template used more time or memory than a rendering may."""


class Meter:
    """Counts one rendering of `variables`, and raises `LimitError` beyond a limit.

    The limits grow with the size of the variables.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        # Weights by id. The containers are kept alive, or their ids could be reused.
        self._weights: dict[int, int] = {}
        self._containers: list[Any] = []
        self._long: list[str] = []
        self._spent = 0
        # Few renderings come near the smallest limits: only then the variables are weighed.
        self._unweighed: Mapping[str, Any] | None = variables
        self._allowance: float = BASE_ALLOWANCE
        # Reading the clock of CPU time is slow, on some machines 100 µs and more: it is read for the
        # first time when half of the limit has passed by the other clock, which is rare.
        self._time_limit = BASE_TIME / 2
        self._started: float | None = None
        self._deadline = monotonic() + self._time_limit

    def charge(self, value: Any) -> Any:
        """Count a value that the template created, and return it."""
        if monotonic() > self._deadline:
            self._check_time()
        kind = type(value)
        if kind is str:
            if len(value) > SHORT and id(value) not in self._weights:
                self._long.append(value)
                self.spend(OBJECT_SIZE + len(value))
        elif value is not None and kind is not bool:
            self.weigh(value)
            self.spend(OBJECT_SIZE)
        return value

    def printed(self, text: str) -> str:
        """Count printed text, even if it was counted before: the output holds a copy."""
        size = len(text)
        if size > SHORT and monotonic() > self._deadline:  # loops and calls check the clock themselves
            self._check_time()
        self._spent += OBJECT_SIZE + size
        if self._spent > self._allowance:
            self.require(0)
        return text

    def spend(self, size: int) -> None:
        """Count `size` bytes as allocated."""
        self._spent += size
        if self._spent > self._allowance:
            self.require(0)

    def require(self, bound: float) -> None:
        """Raise `LimitError` unless `bound` bytes may still be allocated."""
        if self._spent + bound > self._allowance and self._unweighed is not None:
            self._raise_limits(self._unweighed)
        if self._spent + bound > self._allowance:
            self._reclaim()
        if self._spent + bound > self._allowance:
            raise LimitError(f"{bound:.0f} bytes asked for, {self._allowance - self._spent:.0f} left")

    def _raise_limits(self, variables: Mapping[str, Any]) -> None:
        """Raise the limits according to these variables."""
        self._unweighed, self._allowance, spent = None, inf, self._spent
        weight = self.weigh(dict(variables))
        self._spent, self._allowance = spent, BASE_ALLOWANCE + ALLOWANCE_PER_BYTE * weight
        self._time_limit = (BASE_TIME + TIME_PER_BYTE * weight) / 2

    def _reclaim(self) -> None:
        """Subtract the long strings that only this list references."""
        if monotonic() > self._deadline:
            self._check_time()
        counts = _references(self._long)
        before = sum(map(len, self._long)) + OBJECT_SIZE * len(self._long)
        self._long = [text for text, count in zip(self._long, counts, strict=True) if count > _UNUSED]
        self._spent -= before - sum(map(len, self._long)) - OBJECT_SIZE * len(self._long)

    def weigh(self, value: Any) -> int:
        """Bytes of `value` if all its shared parts were written out."""
        if isinstance(value, (str, bytes)):
            return OBJECT_SIZE + len(value)
        if isinstance(value, (list, tuple, dict)):
            return self._weights.get(id(value)) or self._weigh_container(value)
        if isinstance(value, int):
            return OBJECT_SIZE + value.bit_length() // 8
        return OBJECT_SIZE

    def _weigh_container(self, container: Any) -> int:
        """Weigh a new container, and count it with its new parts."""
        weights = self._weights
        weight = new = OBJECT_SIZE + SLOT_SIZE * len(container)
        for part in chain(container, container.values()) if isinstance(container, dict) else container:
            size = OBJECT_SIZE + len(part) if type(part) is str else self.weigh(part)
            weight += size
            if size <= SHORT:
                new += size
            elif isinstance(part, str) and id(part) not in weights:
                weights[id(part)] = size
                new += size
        self.spend(new)
        self.require(weight)
        weights[id(container)] = weight
        self._containers.append(container)
        return weight

    def iterate(self, parts: Iterable[Any]) -> Iterator[Any]:
        """The parts, with a check of the clock before each."""
        for part in parts:
            if monotonic() > self._deadline:
                self._check_time()
            yield part

    def collect(self, parts: Iterable[Any]) -> list[Any]:
        """The parts as a list, each counted when it is produced."""
        collected = []
        for part in parts:
            self.spend(OBJECT_SIZE)
            collected.append(self.charge(part))
        return collected

    def _check_time(self) -> None:
        """Raise `LimitError` if CPU time is over as well: wall time includes waiting for other threads."""
        if self._unweighed is not None:
            self._raise_limits(self._unweighed)
        now = thread_time()
        if self._started is None:
            self._started = now
        used = now - self._started
        if used >= self._time_limit:
            raise LimitError(f"{used:.1f} s used, {self._time_limit:.1f} allowed")
        self._deadline = monotonic() + self._time_limit - used


def _references(values: list[str]) -> list[int]:
    return [getrefcount(value) for value in values]


_UNUSED = _references(["".join(("a", "string", "that", "only", "this", "list", "holds"))])[0]
# The reference count of a string that only a list references: it depends on Python's version.
