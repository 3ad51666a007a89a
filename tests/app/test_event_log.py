"""Law: what is read from a log is what was written to it, event by event, whichever deltas share a line."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.app import event_log
from antiphon.app.event_log import DeltaRun, EventBuffer, events_after, logged_events
from antiphon.core.plain_tokens import NumberedFrame, SequenceNumbers
from antiphon.run import drive
from antiphon.store.records import LogEntry
from tests.search import examples

FRAMES = [
    NumberedFrame(
        b'{"type":"%b.delta","sequence_number":' % kind, b',"item_id":"\xc3\xa9","delta":', b',"logprobs":[]}'
    )
    for kind in (b"text", b"reasoning")
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.sampled_from(["\n", '"[', "\x00"])
STEPS = st.lists(st.tuples(st.sampled_from([0, 1]), TEXTS) | st.just("event") | st.just("take"), max_size=30)


class Written:
    """A log, and the events that were written to it: deltas, other events, and entries taken in between."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.entries: list[LogEntry] = []
        self._numbers = SequenceNumbers()
        self._buffer = EventBuffer()
        self._runs = [DeltaRun(frame) for frame in FRAMES]

    def add(self, step: Any) -> None:
        match step:
            case "take":
                self.take()
            case "event":
                self.events.append(b'{"sequence_number":%d}' % self._numbers.next)
                self._numbers.next += 1
                self._buffer.add(self.events[-1:])
            case (which, text):
                run = self._runs[which]
                if self._buffer.run is not run:
                    self._buffer.follow(run)
                run.texts.append(text)
                self.events.append(self._numbers.delta(FRAMES[which], text))

    def take(self, chunks: bytes = b"") -> None:
        logged = self.entries[-1].last + 1 if self.entries else 0
        self.entries += self._buffer.take(logged, chunks)
        assert not self._buffer


@settings(max_examples=examples(200))
@given(STEPS, st.integers(1, 5), st.integers(1, 2000))
def test_what_was_written_is_read(steps: list[Any], most: int, large: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "MOST_DELTAS", most)
        patch.setattr(drive, "LARGE", large)
        log = Written()
        for step in steps:
            log.add(step)
        log.take()
    assert [event for entry in log.entries for event in logged_events(entry)] == log.events
    for entry in log.entries:
        assert logged_events(entry) == log.events[entry.first : entry.last + 1]
    for after in range(-1, len(log.events)):
        assert events_after(after, log.entries) == log.events[after + 1 :]


def test_consecutive_deltas_take_little_room() -> None:
    log = Written()
    for number in range(100):
        log.add((0, f" {number}"))
    log.take()
    assert sum(len(entry.events) for entry in log.entries) < sum(map(len, log.events)) / 5


def test_an_entry_is_not_large_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MOST_DELTAS", 10)
    monkeypatch.setattr(drive, "LARGE", 3000)
    log = Written()
    for number in range(500):
        log.add((0, f" {number}"))
    log.take(b"chunks")
    assert len(log.entries) > 1
    assert all(sum(map(len, logged_events(entry))) <= 3000 for entry in log.entries)
    assert [entry.chunks for entry in log.entries if entry.chunks] == [b"chunks"]
