"""Reads the events of a stored response as they are written, by whichever server."""

from collections.abc import AsyncGenerator
from functools import partial

from antiphon.core.errors import NotFoundError
from antiphon.run.record import patiently
from antiphon.store.records import Entry, Tail
from antiphon.store.store import Store, events_of

LOOK = 30.0
"""Seconds after which to look again, whatever the store tells."""


async def follow(store: Store, owner: str, response_id: str, after: int) -> AsyncGenerator[list[bytes], None]:
    """The wire events behind sequence number `after` (-1: all), up to the last; live ones as they come.

    Raises NotFoundError if there is no such response, or no longer, and StoreError at
    once if the store cannot be reached; once it was, its return is waited for.
    """
    with store.watch(events_of(response_id)) as watch:
        tail = await store.log.events_after(owner, response_id, after)
        while True:
            if tail is None:
                raise NotFoundError(f"There is no response '{response_id}'.", param="response_id")
            if lines := _behind(after, tail.entries):
                after = tail.entries[-1].last
                yield lines
            if _is_all(tail, after):
                return
            if not lines:
                await watch.changed(LOOK)
            tail = await patiently(partial(store.log.events_after, owner, response_id, after))


def _behind(after: int, entries: list[Entry]) -> list[bytes]:
    """The events of these entries that come behind `after`."""
    lines = [line for entry in entries for line in entry.events.split(b"\n")]
    return lines[max(0, after + 1 - entries[0].first) :] if entries else []


def _is_all(tail: Tail, after: int) -> bool:
    return tail.status.terminal and after >= tail.last_seq
