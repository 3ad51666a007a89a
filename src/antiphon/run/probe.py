"""A probe that all who ask share: it runs at most now and then, and nobody waits for it for long.

Whoever asks gets the result of the last probe, after waiting a moment for one that runs. So a part that
hangs is noticed after `timeout` seconds, one that fails at once, and one that is slow for a moment is not.
"""

import asyncio
from collections.abc import Awaitable, Callable


class SharedProbe:
    """Runs `check` when the last result is older than `fresh` seconds.

    It fails by any exception, or if it takes `timeout` seconds.
    """

    def __init__(self, check: Callable[[], Awaitable[object]], *, fresh: float, timeout: float) -> None:
        self._check = check
        self._fresh = fresh
        self._timeout = timeout
        self._running: asyncio.Task[None] | None = None
        self._ended_at: float | None = None
        self._failure: Exception | None = None

    async def result(self, patience: float) -> Exception | None:
        """Why the last one failed, or None; after waiting `patience` seconds for one that runs."""
        now = asyncio.get_running_loop().time()
        if self._running is None and (self._ended_at is None or now - self._ended_at >= self._fresh):
            self._running = asyncio.create_task(self._run())
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=patience)
        return self._failure

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._check()
        except Exception as error:
            self._failure = error
        else:
            self._failure = None
        finally:
            self._running = None
            self._ended_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End the one that runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
