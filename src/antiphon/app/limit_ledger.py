"""The limits of keys over all servers of a database: its store, asked for this server, for a second.

A store that does not answer is not asked for a second, whatever the key: so nothing waits much longer.
"""

import asyncio
from collections.abc import Coroutine
from functools import cached_property
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import structlog

from antiphon.app.metrics import Metrics
from antiphon.app.storage import Storage
from antiphon.core.errors import StoreError
from antiphon.core.shared_limits import QUESTION_SECONDS, Held, Question, Taken

log = structlog.get_logger(__name__)

T = TypeVar("T")


class StoreLedger:
    """`Ledger`, in the store of a server."""

    def __init__(self, storage: Storage, metrics: Metrics) -> None:
        self._storage = storage
        self._metrics = metrics
        self._away_until = 0.0
        self._answers = True

    @cached_property
    def _server(self) -> str:
        """The id of this server, from its first question on."""
        return uuid4().hex

    @property
    def away(self) -> bool:
        return monotonic() < self._away_until

    async def take(self, question: Question) -> Taken:
        return await self._asked(self._storage.store.key_limits.take(self._server, question))

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> Held:
        return await self._asked(
            self._storage.store.key_limits.hold(self._server, owner, limit, places, seconds)
        )

    async def leave(self) -> None:
        if "_server" in self.__dict__:  # it has asked
            await self._asked(self._storage.store.key_limits.leave(self._server))

    async def _asked(self, asking: Coroutine[Any, Any, T]) -> T:
        """The answer. Raises StoreError if it takes too long."""
        if self.away:
            asking.close()
            raise StoreError
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                answer = await asking
        except (TimeoutError, StoreError) as error:
            self._away_until = monotonic() + QUESTION_SECONDS
            self._note(answers=False)
            raise StoreError("The database did not answer for the limits of keys.") from error
        self._note(answers=True)
        return answer

    def _note(self, *, answers: bool) -> None:
        self._metrics.asked_for_limits(answers=answers)
        if answers != self._answers:
            self._answers = answers
            if answers:
                log.info("the limits of keys are shared again")
            else:
                log.warning("the database does not answer: the limits of keys are this server's part of them")
