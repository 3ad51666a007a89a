"""Finds stop strings in visible text that comes in pieces, reading each character once.

Strategy: Knuth, Morris and Pratt's, for each string: the length of its prefix that the text ends with. The
stop string that begins first is found, and among those that begin together the longest; so text that may
become an earlier or a longer one is held back.
"""

import re
from collections.abc import Iterable


class StopMatcher:
    """Finds where visible text ends: before the first stop string, or after it with `include_stop`."""

    def __init__(self, strings: Iterable[str], include_stop: bool) -> None:
        self._stops = [(string, _borders(string)) for string in dict.fromkeys(strings)]
        self._include_stop = include_stop
        self._begins = re.compile(f"[{''.join({re.escape(stop[0]) for stop, _ in self._stops})}]")
        self.reset()

    def reset(self) -> None:
        """Forget the held-back text."""
        self._lengths = [0] * len(self._stops)  # how much of each the text ends with
        self._match: tuple[int, int, str] | None = None  # where one begins, minus its length, and the string
        self._read = 0  # characters of the next text that were read before

    def find(self, text: str, first: float = 0) -> tuple[int, str | None]:
        """The number of characters of `text` that are certainly visible, and the stop string that was found.

        `text` begins with the characters that were held back before. A stop string that ends in the `first`
        characters does not count.
        """
        at, waits = self._read, bool(self._read)
        while at < len(text):
            if not waits:
                begins = self._begins.search(text, at)
                if begins is None:
                    break
                at = begins.start()
            waits = self._step(text[at], at + 1, counts=at >= first)
            at += 1
            if self._match is not None and not waits:
                start, length, stop = self._match
                return start - length * self._include_stop, stop
        visible = min(self._starts(len(text)), default=len(text))
        self._read = len(text) - visible
        if self._match is not None:
            self._match = (self._match[0] - visible, *self._match[1:])
        return visible, None

    def find_final(self, text: str) -> tuple[int, str | None]:
        """The same for the characters that are held back, if no more text follows. Then it begins again."""
        match = self._match
        self.reset()
        if match is None:
            return len(text), None
        start, length, stop = match
        return start - length * self._include_stop, stop

    def _step(self, char: str, end: int, *, counts: bool) -> bool:
        """Read a character, which ends at `end`; returns whether the result is still open.

        Unless it `counts`, no stop string ends with it.
        """
        lengths = self._lengths
        for index, (stop, borders) in enumerate(self._stops):
            length = lengths[index]
            while length and stop[length : length + 1] != char:
                length = borders[length]
            if stop[length] == char:
                length += 1
            lengths[index] = length
            if length == len(stop) and counts:
                match = end - length, -length, stop  # the least of these begins first, and is the longest
                self._match = match if self._match is None else min(self._match, match)
        if self._match is None:
            return any(lengths)
        return any(
            length < len(stop) and (end - length, -len(stop)) < self._match[:2]
            for length, (stop, _) in zip(lengths, self._stops, strict=True)
            if length
        )

    def _starts(self, end: int) -> list[int]:
        """The positions where a stop string may begin, in text that ends at `end`."""
        starts = [end - length for length in self._lengths if length]
        return starts if self._match is None else [*starts, self._match[0]]


def _borders(string: str) -> list[int]:
    """For each length of a prefix of the string: its longest proper prefix that is also its suffix."""
    borders = [0, 0]
    length = 0
    for char in string[1:]:
        while length and string[length] != char:
            length = borders[length]
        length += string[length] == char
        borders.append(length)
    return borders
