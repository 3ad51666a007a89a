"""The processes in which Monty runs programs, from one pool. Each is used for one answer."""

import asyncio

import structlog
from pydantic_monty import AsyncMonty, AsyncMontySession, OSPolicy, ResourceLimits

from antiphon.core.errors import ToolError
from antiphon.toolkits.code_interpreter.cell import BROKEN, BUSY

GRACE = 2.0
"""Seconds after its time limit until a call is ended that waits instead of computing."""

QUEUE_SECONDS = 5.0
"""How long an answer waits for a process, if too many run."""

THREAD_EXIT_SECONDS = 0.05
"""Seconds until a closed pool's threads have left Python, which is aborted if it ends before that."""

MEMORY = 256 * 2**20
"""Bytes that the program of an answer may hold."""

MAX_PROCESSES = 32
"""How many answers have a process at the same time."""

MAX_SUSPENSIONS = 10**6
"""The most requests of a program to the host, for files and the like: the time of a call bounds them, too."""

MODULES = (
    "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal",
    "functools", "hashlib", "itertools", "json", "math", "random", "re", "tomllib", "typing", "unicodedata",
)  # fmt: skip
"""Modules that programs may import, and that work without files and a network."""

log = structlog.get_logger()


class Processes:
    """The pool. Its first process opens it."""

    def __init__(self) -> None:
        self._opening = asyncio.Lock()
        self._pool: AsyncMonty | None = None

    async def begin(self, seconds: float, policy: OSPolicy, memory: int = MEMORY) -> AsyncMontySession:
        """A process that may compute for so many seconds at a time, with so many bytes.

        Raises ToolError if there is none.
        """
        limits = ResourceLimits(
            max_feed_duration_secs=seconds, max_memory=memory, max_suspensions=MAX_SUSPENSIONS
        )
        try:
            pool = await self._opened()
            return await _entered(pool.checkout(limits=limits, os_policy=policy))
        except TimeoutError as error:
            raise ToolError(BUSY) from error
        except (RuntimeError, OSError) as error:
            log.exception("the code interpreter does not start")
            raise ToolError(BROKEN) from error

    async def close(self) -> None:
        """End the pool: all its processes have ended."""
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)
            await asyncio.sleep(THREAD_EXIT_SECONDS)

    async def _opened(self) -> AsyncMonty:
        async with self._opening:
            if self._pool is None:
                # A process is used for one answer, so that no data can get into another.
                pool = AsyncMonty(
                    min_processes=0,
                    max_processes=MAX_PROCESSES,
                    max_checkouts_per_worker=1,
                    checkout_timeout=QUEUE_SECONDS,
                )
                self._pool = await pool.__aenter__()
            return self._pool


async def _entered(session: AsyncMontySession) -> AsyncMontySession:
    """The session, with its process: who is cancelled in the turn in which that is there never gets it."""
    try:
        return await session.__aenter__()
    except BaseException:
        await session.__aexit__(None, None, None)
        raise
