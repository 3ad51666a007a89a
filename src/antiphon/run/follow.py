"""Reads the events of a stored response as they are written, by whichever server."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from antiphon.core.errors import EngineNotReadyError, NotFoundError
from antiphon.run.record import Desk, patiently
from antiphon.store.records import Entry, Tail
from antiphon.store.store import Watch, events_of

LOOK = 30.0
"""Seconds after which to look again, whatever the store tells."""


async def follow(desk: Desk, owner: str, response_id: str, after: int) -> AsyncGenerator[list[bytes], None]:
    """The wire events behind sequence number `after` (-1: all), up to the last; live ones as they come.

    Raises NotFoundError if there is no such response, or no longer; StoreError at
    once if the store cannot be reached (once it was, its return is waited for);
    and EngineNotReadyError if this server stops before the response has ended.
    """
    events_after = desk.store.log.events_after
    with desk.store.watch(events_of(response_id)) as watch:
        tail = await events_after(owner, response_id, after)
        while True:
            if tail is None:
                raise NotFoundError(f"There is no response '{response_id}'.", param="response_id")
            if lines := _behind(after, tail.entries):
                after = tail.entries[-1].last
                yield lines
            if _is_all(tail, after):
                return
            if not lines:
                await _changed(watch, desk.stopping)
            while lines := desk.fresh(response_id, after):
                after += len(lines)
                yield lines
                await _changed(watch, desk.stopping)
            tail = await patiently(partial(events_after, owner, response_id, after))


async def _changed(watch: Watch, stopping: asyncio.Future[None]) -> None:
    """Wait for a change."""
    changed = asyncio.ensure_future(watch.changed(LOOK))
    try:
        await asyncio.wait((changed, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        changed.cancel()
    if stopping.done():
        raise EngineNotReadyError


def _behind(after: int, entries: list[Entry]) -> list[bytes]:
    """The events of these entries that come behind `after`."""
    lines = [line for entry in entries for line in entry.events.split(b"\n")]
    return lines[max(0, after + 1 - entries[0].first) :] if entries else []


def _is_all(tail: Tail, after: int) -> bool:
    return tail.status.terminal and after >= tail.last_seq
