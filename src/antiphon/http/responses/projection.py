"""A responder, as the run layer sees it: it projects events, and says what the store shall keep."""

import time
from collections.abc import Sequence

from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.stream import Responder
from antiphon.core.events import Event
from antiphon.http.responses.compacting import Short
from antiphon.http.responses.running import cancelled, failed
from antiphon.run.choice import told
from antiphon.run.worker import CancelledByClientError, LastWords
from antiphon.store.records import ItemRecord, ResponseRecord, ResponseStatus

_ITEM_DONE = b'{"type":"response.output_item.done"'


class ResponseProjection:
    """Makes the events of one response, and itself; see `run.record.Projection`."""

    def __init__(self, responder: Responder, *, queued: bool = False) -> None:
        self.responder = responder
        self.done = 0
        self._queued = queued
        self._compaction: dict[str, str] | None = None
        self.count_prompt = responder.count_prompt

    @property
    def status(self) -> ResponseStatus:
        """How far the response got."""
        return ResponseStatus(self.responder.status)

    def begin(self) -> list[bytes]:
        """It is created, may be queued and summed up, and the model gets to work."""
        waited = self.responder.queue() if self._queued else []
        started = self.responder.start()
        short = self.responder.add("compaction", self._compaction) if self._compaction else []
        return [*waited, *started, *short]

    def compacted(self, short: Short) -> None:
        """The conversation was summed up before the answer."""
        self._compaction = short.fields
        self.responder.count_prompt(short.summary.prompt_tokens)
        self.responder.count(short.summary.usage)

    def push(self, events: list[Event]) -> list[bytes]:
        """More was said."""
        lines = self.responder.push(events)
        for line in lines:
            if line.startswith(_ITEM_DONE):
                self.done += 1
        return lines

    def finish(self) -> list[bytes]:
        """All was said."""
        return self.responder.finish(int(time.time()))

    def fail(self, error: Exception) -> list[bytes]:
        """It cannot be finished. Clients are told what they may know."""
        return self.responder.fail(told(error))

    def cancel(self) -> list[bytes]:
        """It is not wanted any more."""
        return self.responder.cancel()

    def body(self) -> bytes:
        """The response object."""
        return self.responder.resource

    def output(self) -> tuple[ItemRecord, ...]:
        """The items that the model made."""
        return as_records(self.responder.items)


def as_records(items: Sequence[StoredItem]) -> tuple[ItemRecord, ...]:
    """Items as the store keeps them."""
    now = time.time()
    return tuple(ItemRecord(item.id, item.type, item.payload, now, item.tokens or None) for item in items)


def bury(record: ResponseRecord, why: Exception) -> LastWords:
    """The end of a response that failed, or was cancelled, where only its record is left."""
    return cancelled(record) if isinstance(why, CancelledByClientError) else failed(record, told(why))
