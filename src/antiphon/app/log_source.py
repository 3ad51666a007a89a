"""The log of a stored response as a source: replayed, then followed while any server writes it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from antiphon.apis.projection import SilentProjection
from antiphon.app.log_writer import LogWriter, events_behind
from antiphon.core.errors import AntiphonError, EngineNotReadyError, NotFoundError
from antiphon.run.drive import Driver, own_turn, pieces
from antiphon.store.records import LogEntry, LogTail
from antiphon.store.store import Watch, events_of

POLL_INTERVAL = 30.0
"""Seconds after which the store is read again, even without a notification."""
LOCAL_POLL_INTERVAL = 1.0
"""The same while this server writes the response: fresh lines do not say that it was deleted meanwhile."""


class LogSource:
    """The wire events of a response behind sequence number `after` (-1: all), up to the last. See `Source`.

    Running raises NotFoundError if there is no such response, or no longer; StoreError at
    once if the store cannot be reached (once it was, its return is waited for);
    and EngineNotReadyError if this server stops before the response has ended.
    """

    def __init__(self, writer: LogWriter, owner: str, response_id: str, after: int = -1) -> None:
        self._writer = writer
        self._owner = owner
        self._id = response_id
        self._after = after

    async def run(self, output: Driver) -> None:
        """See `Source`."""
        with self._writer.store.watch(events_of(self._id)) as watch:
            tail = await self._read_much()  # while it is watched: what changes in between is not missed
            while True:
                if tail is None:
                    raise NotFoundError(f"There is no response '{self._id}'.", param="response_id")
                known = self._after
                await self._push(output, _batches(known, tail.entries))
                if tail.status.terminal and self._after >= tail.last_seq:
                    return
                if self._after == known:
                    await self._changed(watch)
                # Where this server writes it, its readers do not read the store for each batch.
                while lines := self._writer.fresh(self._id, self._after):
                    await self._push(output, pieces(lines, len))
                    await self._changed(watch, LOCAL_POLL_INTERVAL)
                behind = self._after < tail.last_seq
                tail = await self._writer.retried(self._read_much if behind else self._read)

    async def _read(self) -> LogTail | None:
        """What is stored behind what was pushed."""
        return await self._writer.store.log.events_after(self._owner, self._id, self._after)

    async def _read_much(self) -> LogTail | None:
        """The same, by one reader at a time, because a slow reader may have much to read."""
        async with self._writer.reading:
            return await self._read()

    async def _push(self, output: Driver, batches: Iterable[list[bytes]]) -> None:
        """Push these events, a batch in each turn, and wait until more can be taken."""
        for number, lines in enumerate(batches):
            if number:
                await own_turn(output)
            self._after += len(lines)
            output.push(0, lines)
        if output.paused:
            await own_turn(output)

    async def _changed(self, watch: Watch, within: float = POLL_INTERVAL) -> None:
        """Wait for a change, or so many seconds. Several changes may be one notification."""
        changed = asyncio.ensure_future(watch.changed(within))
        stopping = self._writer.stopping
        try:
            await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if stopping.done():
            raise EngineNotReadyError

    def abandon(self) -> Iterable[tuple[int, Any]]:
        """There is nothing to close: whoever writes the log does that."""
        return ()


class LogProjection(SilentProjection):
    """Wire events as they were stored, the first and the last included. See `Projection`."""

    def __init__(self, encode_error: Callable[[AntiphonError], bytes]) -> None:
        self._encode_error = encode_error

    def prompted(self, prompts: Iterable[Any]) -> None:
        """They are in the log."""

    def push(self, choice: int, lines: list[bytes]) -> list[bytes]:
        """The same."""
        return lines

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The error of this reader: the response itself may continue."""
        return [self._encode_error(error)]

    def body(self) -> bytes:
        """A log has none."""
        return b""


def _batches(after: int, entries: list[LogEntry]) -> Iterator[list[bytes]]:
    """The events of these entries after number `after`, in small batches."""
    for some in pieces(entries, lambda entry: len(entry.events)):
        if lines := events_behind(after, some):
            yield lines
