"""Has something else committed between two statements of a read, wherever that is possible."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.util import await_only

from antiphon.core.errors import NotFoundError

Found = Any


async def interleaved(
    prepare: Callable[[], Awaitable[Any]],
    read: Callable[[], Awaitable[Found]],
    change: Callable[[], Awaitable[Any]],
) -> AsyncIterator[Found]:
    """The results, None for nothing, when the change is committed after the first statement, the second, …

    Each time everything is prepared anew.
    """
    behind, changed = 1, True
    while changed:
        await prepare()
        found, changed = None, False
        with _behind(behind, change) as done:
            with suppress(NotFoundError):
                found = await read()
            changed = bool(done)
        if changed:
            yield found
        behind += 1


@contextmanager
def _behind(count: int, change: Callable[[], Awaitable[Any]]) -> Any:
    """Make the change after this number of statements of a read. The result is not empty if it was made."""
    loop, seen, done = asyncio.get_running_loop(), list[str](), list[str]()

    async def make() -> None:
        await change()

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        if len(seen) == count:  # it is made
            return
        seen.append(statement)
        if len(seen) == count:
            done.append(statement)
            if threading.current_thread() is threading.main_thread():
                await_only(make())  # PostgreSQL is read on the event loop
            else:
                asyncio.run_coroutine_threadsafe(make(), loop).result()

    event.listen(Engine, "after_cursor_execute", executed)
    try:
        yield done
    finally:
        event.remove(Engine, "after_cursor_execute", executed)
