"""Engines of tests push what an iterator yields, one batch in a step of the event loop."""

import asyncio
from collections.abc import Callable, Iterable

from antiphon.core.chunks import Chunk
from antiphon.core.errors import AntiphonError
from antiphon.engines.engine import Receiver


class Pushing:
    """The work of such an engine; it fails with the AntiphonError that the iterator raises."""

    def __init__(self, batches: Iterable[list[Chunk]], receiver: Receiver) -> None:
        self._batches = iter(batches)
        self._receiver = receiver
        self._over = False
        asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        if self._over:
            return
        try:
            batch = next(self._batches)
        except AntiphonError as error:
            self._over = True
            self._receiver.fail(error)
            return
        self._over = batch[-1].finish is not None
        asyncio.get_running_loop().call_soon(self._step)
        self._receiver.push(batch)

    def cancel(self) -> None:
        self._over = True


class Edited:
    """A receiver that hands on chunks as `edit` has them."""

    def __init__(self, receiver: Receiver, edit: Callable[[Chunk], Chunk]) -> None:
        self._edit = edit
        self._receiver = receiver
        self.fail = receiver.fail

    def push(self, chunks: list[Chunk]) -> None:
        self._receiver.push([self._edit(chunk) for chunk in chunks])
