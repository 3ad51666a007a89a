"""The limits of keys over all servers of a database: its store, asked for this server, for a second."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar
from uuid import uuid4

from antiphon.app.storage import Storage
from antiphon.core.errors import StoreError
from antiphon.core.shared_limits import QUESTION_SECONDS, Held, Question, Taken

T = TypeVar("T")


class StoreLedger:
    """`Ledger`, in the store of a server."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._server = uuid4().hex

    async def take(self, question: Question) -> Taken:
        return await _soon(self._storage.store.key_limits.take(self._server, question))

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> Held:
        return await _soon(self._storage.store.key_limits.hold(self._server, owner, limit, places, seconds))


async def _soon(asked: Awaitable[T]) -> T:
    """The answer. Raises StoreError if it takes too long."""
    try:
        async with asyncio.timeout(QUESTION_SECONDS):
            return await asked
    except TimeoutError as error:
        raise StoreError("The database takes too long.") from error
