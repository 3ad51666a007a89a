"""The log of a stored response as a source: replayed, then followed while any server writes it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from antiphon.apis.projection import SilentProjection
from antiphon.app.event_log import events_after
from antiphon.app.log_writer import LogWriter
from antiphon.core.errors import AntiphonError, EngineNotReadyError, NotFoundError
from antiphon.run.drive import LARGE, Output, pieces, wait_for_turn
from antiphon.store.records import LogEntry, LogTail
from antiphon.store.store import Watch, events_of

POLL_INTERVAL = 30.0
"""Seconds after which the store is read again, even without a notification."""
LOCAL_POLL_INTERVAL = 1.0
"""The same while this server writes the response, to notice that it was deleted."""


class LogSource:
    """The wire events of a response after sequence number `after` (-1: all), up to the last. See `Source`.

    `position` is the number of the last one that was pushed.
    `run` raises NotFoundError if the response does not exist, or was deleted; StoreError if the store cannot
    be reached at the beginning (later, it waits for the store); and EngineNotReadyError if this server stops
    before the response has ended.
    """

    def __init__(self, writer: LogWriter, owner: str, response_id: str, after: int = -1) -> None:
        self._writer = writer
        self._owner = owner
        self._id = response_id
        self.position = after

    async def run(self, output: Output) -> None:
        with self._writer.store.watch(events_of(self._id)) as watch:
            tail = await self._read_after_others()  # after the watch has begun, so that no change is missed
            while True:
                if tail is None:
                    raise NotFoundError(f"There is no response '{self._id}'.", param="response_id")
                before = self.position
                await self._push(output, _batches(before, tail.entries))
                if tail.status.terminal and self.position >= tail.last_seq:
                    return
                if self.position == before:
                    await self._changed(watch)
                # Where this server writes it, its readers do not read the store for each batch.
                while lines := self._writer.fresh(self._id, self.position):
                    await self._push(output, pieces(lines, len))
                    await self._changed(watch, LOCAL_POLL_INTERVAL)
                behind = self.position < tail.last_seq
                tail = await self._writer.retried(self._read_after_others if behind else self._read)

    async def _read(self) -> LogTail | None:
        """The stored events after those that were pushed."""
        return await self._writer.store.log.events_after(self._owner, self._id, self.position)

    async def _read_after_others(self) -> LogTail | None:
        """The same, by one reader at a time, because a slow reader may have much to read."""
        return await self._writer.reading.run(lambda: asyncio.ensure_future(self._read()))

    async def _push(self, output: Output, batches: Iterable[list[bytes]]) -> None:
        """Push these events, a batch in each turn, and wait until more can be taken."""
        for number, lines in enumerate(batches):
            if number:
                await wait_for_turn(output)
            self.position += len(lines)
            output.push(0, lines)
        if output.paused:
            await wait_for_turn(output)

    async def _changed(self, watch: Watch, within: float = POLL_INTERVAL) -> None:
        """Wait for a change, for at most `within` seconds. Several changes may be one notification."""
        changed = asyncio.ensure_future(watch.changed(within))
        stopping = self._writer.stopping
        try:
            await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if stopping.done():
            raise EngineNotReadyError

    def abandon(self) -> Iterable[tuple[int, Any]]:
        """Nothing: the writer of the log closes open items."""
        return ()


class LogProjection(SilentProjection):
    """Wire events as they were stored, the first and the last included. See `Projection`."""

    def __init__(self, encode_error: Callable[[AntiphonError], bytes]) -> None:
        self._encode_error = encode_error

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        """Nothing: prompts are in the log."""

    def push(self, choice: int, lines: list[bytes]) -> list[bytes]:
        """The same."""
        return lines

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The error of this reader: the response itself may continue."""
        return [self._encode_error(error)]

    def body(self) -> bytes:
        """Nothing: a log has no body."""
        return b""


def _batches(after: int, entries: list[LogEntry]) -> Iterator[list[bytes]]:
    """The events of these entries after number `after`, in small batches."""
    batch: list[bytes] = []
    size = 0
    for entry in entries:
        events = events_after(after, (entry,))
        more = sum(map(len, events))
        if batch and size + more > LARGE:
            yield batch
            batch, size = [], 0
        batch += events
        size += more
    if batch:
        yield batch
