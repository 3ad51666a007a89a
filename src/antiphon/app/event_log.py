"""The events of a response as lines of its log: one per line, but consecutive deltas share a line.

Deltas are most of an answer, and those of one item differ only in their numbers and texts. Their line is a
JSON array: the three parts of their frame, then the texts. It has a tenth of the bytes, and readers restore
the same events.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from antiphon.core.plain_tokens import NumberedFrame, SequenceNumbers
from antiphon.run.drive import pieces
from antiphon.store.records import LogEntry

MOST_DELTAS = 1000
"""Maximum number of deltas in a line."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode


class DeltaRun:
    """Consecutive deltas of one item: their `texts` since the last line."""

    def __init__(self, frame: NumberedFrame) -> None:
        self.frame = frame
        self.texts: list[str] = []
        self._parts = [part.decode() for part in frame]
        self._size = sum(map(len, frame))

    def take(self) -> "list[_Line]":
        """Its lines; then it is empty."""
        parts = [self.texts[start : start + MOST_DELTAS] for start in range(0, len(self.texts), MOST_DELTAS)]
        self.texts.clear()
        return [self._line(part) for part in parts]

    def _line(self, texts: list[str]) -> "_Line":
        line = _encode(self._parts + texts)
        return _Line(line, len(texts), len(line) + len(texts) * self._size)


class _Line(NamedTuple):
    """A line of the log, the number of its events, and about how many bytes they have."""

    line: bytes
    events: int
    size: int


class EventBuffer:
    """Wire events that are not written yet."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self.run: DeltaRun | None = None
        """Its texts follow `_lines`, also those that are appended to it later."""

    def __bool__(self) -> bool:
        return bool(self._lines) or (self.run is not None and bool(self.run.texts))

    def add(self, events: Iterable[bytes]) -> None:
        """Add wire events."""
        self._add_run()
        self._lines += [_Line(event, 1, len(event)) for event in events]

    def follow(self, run: DeltaRun | None) -> None:
        """From now on the texts of this run are the last events."""
        self._add_run()
        self.run = run

    def take(self, first: int, chunks: bytes) -> tuple[LogEntry, ...]:
        """All events, from number `first` on, as entries of the store, with these chunks; then it is empty.

        Large ones are split into several entries: each entry is copied at once, which blocks the event loop.
        """
        self._add_run()
        lines, self._lines = self._lines, []
        entries: list[LogEntry] = []
        for piece in pieces(lines, lambda line: line.size):
            last = first + sum(line.events for line in piece) - 1
            entries.append(LogEntry(first, last, b"\n".join([line.line for line in piece]), chunks))
            first, chunks = last + 1, b""
        return tuple(entries)

    def _add_run(self) -> None:
        if self.run is not None and self.run.texts:
            self._lines += self.run.take()


def logged_events(entry: LogEntry) -> list[bytes]:
    """The wire events of an entry."""
    events: list[bytes] = []
    for line in entry.events.split(b"\n"):
        if not line.startswith(b"["):
            events.append(line)
            continue
        head, middle, tail, *texts = _decode(line)
        frame, numbers = NumberedFrame(head.encode(), middle.encode(), tail.encode()), SequenceNumbers()
        numbers.next = entry.first + len(events)
        events += [numbers.delta(frame, text) for text in texts]
    return events


def events_after(after: int, entries: Sequence[LogEntry]) -> list[bytes]:
    """The events of these entries after number `after`."""
    events = [event for entry in entries for event in logged_events(entry)]
    return events[max(0, after + 1 - entries[0].first) :] if entries else []
