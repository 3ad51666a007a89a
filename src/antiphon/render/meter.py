"""What one rendering may use: CPU time and memory.

Everything that a template makes (a sum, a call's result, a list, a printed
piece) passes `Meter.charge` once, which looks at the clock and counts it.
Before an operation whose result can be far larger than its operands runs,
`Meter.afford` is asked with a bound of that result (see `bounds`).

Counted are containers, printed text and long strings. Short strings and
numbers are not, unless a container holds them: a template has only so many
variables. A long string that nothing holds any more is given back when memory
runs short, so text may be built up piece by piece.

A container also has a weight: its size if every shared part were written out.
A list that holds another one twice, and so on forty times, is small in memory
and endless when printed or compared; its weight says so. A weight is found
once, when the container is made, from those of its parts, and stays true
because a template can change nothing that exists.

Sizes are estimates in bytes that count a character as one (Python needs one to
four), so the true peak may be some times higher.
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
"""Seconds more for each byte of what is rendered."""

BASE_ALLOWANCE = 16 * 2**20
"""Bytes that any rendering may make."""

ALLOWANCE_PER_BYTE = 32
"""Bytes that it may make for each byte of what it renders: copies of the text, and copies of those."""

OBJECT_SIZE = 64
"""Bytes that any object is counted with, beside what it holds."""

SLOT_SIZE = 8
"""Bytes that a container needs for each of its parts, beside the part."""

SHORT = 256
"""Strings up to this many characters are short."""


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
        self._long: list[str] = []
        self._spent = 0
        self._allowance: float = inf
        given = self.weigh(dict(variables))
        self._allowance = BASE_ALLOWANCE + ALLOWANCE_PER_BYTE * given
        self._spent = 0
        self._time_limit = BASE_TIME + TIME_PER_BYTE * given
        self._started = thread_time()
        self._deadline = monotonic() + self._time_limit

    def charge(self, value: Any) -> Any:
        """Count what the template has made, and give it back."""
        if monotonic() > self._deadline:
            self._look_closer()
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
        """Count text that goes out, even if it was there before: it is copied for good."""
        if monotonic() > self._deadline:
            self._look_closer()
        self.spend(OBJECT_SIZE + len(text))
        return text

    def spend(self, size: int) -> None:
        """Count `size` bytes as made."""
        self._spent += size
        if self._spent > self._allowance:
            self.afford(0)

    def afford(self, bound: float) -> None:
        """Fail unless something of up to `bound` bytes may still be made."""
        if self._spent + bound > self._allowance:
            self._give_back()
        if self._spent + bound > self._allowance:
            raise LimitError(f"{bound:.0f} bytes asked for, {self._allowance - self._spent:.0f} left")

    def _give_back(self) -> None:
        """Forget the long strings that only we hold."""
        if monotonic() > self._deadline:
            self._look_closer()
        counts = _references(self._long)
        before = sum(map(len, self._long)) + OBJECT_SIZE * len(self._long)
        self._long = [text for text, count in zip(self._long, counts, strict=True) if count > _UNUSED]
        self._spent -= before - sum(map(len, self._long)) - OBJECT_SIZE * len(self._long)

    def weigh(self, value: Any) -> int:
        """Bytes that `value` would take if all its shared parts were written out."""
        if isinstance(value, str | bytes):
            return OBJECT_SIZE + len(value)
        if isinstance(value, list | tuple | dict):
            return self._weights.get(id(value)) or self._admit(value)
        if isinstance(value, int):
            return OBJECT_SIZE + value.bit_length() // 8
        return OBJECT_SIZE

    def _admit(self, container: Any) -> int:
        """Weigh a container that is new here, and count it together with what came with it."""
        weights = self._weights
        weight = made = OBJECT_SIZE + SLOT_SIZE * len(container)
        for part in chain(container, container.values()) if isinstance(container, dict) else container:
            size = OBJECT_SIZE + len(part) if type(part) is str else self.weigh(part)
            weight += size
            if size <= SHORT:
                made += size
            elif isinstance(part, str) and id(part) not in weights:
                weights[id(part)] = size
                made += size
        self.spend(made)
        self.afford(weight)
        weights[id(container)] = weight
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
        collected = []
        for part in parts:
            self.spend(OBJECT_SIZE)
            collected.append(self.charge(part))
        return collected

    def _look_closer(self) -> None:
        """The wall clock says that time is up, but the process may just have been busy elsewhere."""
        used = thread_time() - self._started
        if used >= self._time_limit:
            raise LimitError(f"{used:.1f} s used, {self._time_limit:.1f} allowed")
        self._deadline = monotonic() + self._time_limit - used


def _references(values: list[str]) -> list[int]:
    return [getrefcount(value) for value in values]


_UNUSED = _references(["".join(("a", "string", "that", "only", "this", "list", "holds"))])[0]
# How many references that function sees to what only the list holds: Python's versions differ.
