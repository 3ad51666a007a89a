"""Which models could not be loaded. They are not tried again at once: asking for them unloads no other.

A load that fails after others were unloaded has cost these for nothing. So who asks again gets the error at
once, until the model is due: after some seconds, and after each further failure twice as long, up to an hour.
A model whose files have changed is due immediately.
"""

import asyncio
from collections.abc import Hashable

from msgspec import Struct

from antiphon.core.errors import ModelNotLoadedError

RETRY_SECONDS = 30.0
"""Seconds until a model that could not be loaded is tried again, for the first time."""
MAX_RETRY_SECONDS = 3600.0
"""The same after many failures."""
MAX_RETRY_AFTER = 60.0
"""The most seconds that a client is asked to wait: some clients wait for however long they are told."""


class _Failure(Struct, frozen=True):
    """The last failure of a model, of `count` in a row. It is due at a time of the loop's clock."""

    files: Hashable
    count: int
    due: float


class FailedLoads:
    """The models that could not be loaded, by their names."""

    def __init__(self, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._failures: dict[str, _Failure] = {}

    def check(self, name: str, files: Hashable) -> None:
        """Raise ModelNotLoadedError if the model is not due; `files` is the state of its files."""
        failure = self._failures.get(name)
        wait = 0.0 if failure is None or failure.files != files else failure.due - _now()
        if wait > 0:
            raise not_loaded(name, wait)

    def add(self, name: str, files: Hashable) -> ModelNotLoadedError:
        """The model could not be loaded. Returns the error for clients, who do not see why."""
        before = self._failures.get(name)
        count = 1 + (before.count if before is not None and before.files == files else 0)
        wait = min(self._retry_seconds * 2.0 ** (count - 1), MAX_RETRY_SECONDS)
        self._failures[name] = _Failure(files, count, _now() + wait)
        return not_loaded(name, wait)

    def forget(self, name: str) -> None:
        """The model was loaded."""
        self._failures.pop(name, None)


def not_loaded(name: str, wait: float) -> ModelNotLoadedError:
    """The error for clients of a model that is due in so many seconds."""
    error = ModelNotLoadedError(
        f"The model '{name}' could not be loaded. The log of the server says why. Use another model, or try "
        "again later."
    )
    error.retry_after = min(wait, MAX_RETRY_AFTER)
    return error


def _now() -> float:
    return asyncio.get_running_loop().time()
