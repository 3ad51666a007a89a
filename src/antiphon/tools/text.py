"""Bounds the output of a program: its beginning and its end are kept, and the omitted characters counted."""

from collections import deque
from collections.abc import Callable


class Excerpt:
    """A text in pieces, of which at most `limit` characters are kept.

    `on_output` gets its first half at once: that half is kept in any case.
    """

    def __init__(self, limit: int, on_output: Callable[[str], object] | None = None) -> None:
        self._on_output = on_output
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_room = limit // 2
        self._tail_room = limit - self._head_room
        self._tail_chars = 0
        self._left_out = 0

    def write(self, text: str) -> None:
        """Process the next piece. The cost does not depend on earlier pieces."""
        head, tail = text[: self._head_room], text[self._head_room :]
        self._head_room -= len(head)
        if head:
            self._head.append(head)
            if self._on_output is not None:
                self._on_output(head)
        if tail:
            self._tail.append(tail)
            self._tail_chars += len(tail)
            self._trim()

    def write_line(self, text: str) -> None:
        """Process a piece that begins a new line."""
        last = (self._tail or self._head or ["\n"])[-1]
        self.write(text if last.endswith("\n") else f"\n{text}")

    def __str__(self) -> str:
        if not self._left_out:
            return "".join((*self._head, *self._tail))
        notice = f"\n[{self._left_out} characters are left out here]\n"
        return "".join((*self._head, notice, *self._tail))

    def _trim(self) -> None:
        while (over := self._tail_chars - self._tail_room) > 0:
            first = self._tail.popleft()
            if len(first) > over:
                self._tail.appendleft(first[over:])
            gone = min(len(first), over)
            self._tail_chars -= gone
            self._left_out += gone
