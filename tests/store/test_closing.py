"""A store that is closed leaves no write waiting: each is done, or refused."""

import asyncio
from typing import Any

import pytest

from antiphon.core.errors import StoreError
from antiphon.core.limits import DEFAULTS
from antiphon.store.database import Database, one_by_one
from antiphon.store.records import StoreTuning


class Backend:
    """Its writes take some turns of the event loop."""

    async def open(self, _notifier: object) -> None:
        pass

    async def transact(self, _work: object) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
        return [None]

    async def close(self) -> None:
        pass


@one_by_one
def nothing(*_: object) -> None:
    """A write."""


@pytest.mark.parametrize("turns", range(12))
async def test_writes_that_found_no_room_are_done_or_refused(turns: int) -> None:
    """The end of the queue may find room before writes that have waited for it."""
    database = Database(Backend(), DEFAULTS, StoreTuning(waiting=2, batch=1))  # type: ignore[arg-type]
    await database.open()
    tasks = [asyncio.create_task(database.write(nothing, None)) for _ in range(20)]
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await database.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, StoreError) for end in ended)
    assert None in ended
