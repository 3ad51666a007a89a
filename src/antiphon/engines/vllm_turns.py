"""Keeps two kinds of requests apart that vLLM's older model runner must not have in one step.

If a request of a step names the tokens whose log probabilities it wants, the older runner returns those of
named tokens to all requests of the step, also to answers with the likeliest tokens. So requests of the two
kinds take turns: all that wait of one kind, then all of the other. While one of the other kind waits, no more
begin.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum


class ScoreKind(StrEnum):
    """Which log probabilities a request wants."""

    LIKELIEST = "likeliest"
    NAMED = "named"


class Turns:
    """The requests that run, which are of one kind. Unless they are kept `apart`, nothing waits."""

    def __init__(self, *, apart: bool) -> None:
        self._apart = apart
        self._kind = ScoreKind.LIKELIEST
        self._running = 0
        self._waiting: deque[tuple[ScoreKind, asyncio.Future[None]]] = deque()

    async def enter(self, kind: ScoreKind) -> None:
        """Wait until requests of this kind may run. Who has entered has to `leave`."""
        if not self._waiting and (self._kind is kind or not self._running or not self._apart):
            self._kind = kind
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was its turn already
                self.leave()
            raise

    def leave(self) -> None:
        """A request is over. After the last one, those of the kind that waits for the longest time begin."""
        self._running -= 1
        if self._running:
            return
        while self._waiting and self._waiting[0][1].cancelled():
            self._waiting.popleft()
        if not self._waiting:
            return
        self._kind, waiting = self._waiting[0][0], self._waiting
        self._waiting = deque((kind, turn) for kind, turn in waiting if kind is not self._kind)
        for kind, turn in waiting:
            if kind is self._kind and not turn.cancelled():
                self._running += 1
                turn.set_result(None)

    @asynccontextmanager
    async def hold(self, kind: ScoreKind) -> AsyncIterator[None]:
        """Run a request of this kind in the block."""
        await self.enter(kind)
        try:
            yield
        finally:
            self.leave()
