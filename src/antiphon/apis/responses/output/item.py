"""The common parts of all items that are being written.

Deltas are frequent, so they are made by joining bytes: an event with marks in the places of its number and
its text is encoded once per item and split at the marks. So a delta comes from the same wire type as every
other event.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from antiphon.apis.responses.events import Event, ItemAdded, ItemDone
from antiphon.apis.responses.stored import StoredItem
from antiphon.core import items
from antiphon.core.events import Delta
from antiphon.core.plain_tokens import NumberedFrame, SequenceNumbers, parts_around

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"

_NUMBER = b'"sequence_number":'
encode = msgspec.json.Encoder().encode


def frame(event: Event, *fields: object) -> NumberedFrame:
    """The frame of events like this one, whose text follows these fields."""
    before, tail = parts_around(lambda text: encode(event(0, *fields, text)))
    head, number, middle = before.partition(_NUMBER)
    return NumberedFrame(head + number, middle[1:], tail)


class ItemPosition(NamedTuple):
    """The position of an item: its id, and its index in the output."""

    id: str
    output_index: int


class OpenItem(ABC):
    """An item that is being written: `start`, its deltas, `end` with its content, `close` with its status.

    Each returns the events for the stream. `frame` makes the deltas of an item that shows the text
    unchanged; without one, `add` makes them.
    """

    frame: NumberedFrame | None = None

    def __init__(self, numbers: SequenceNumbers, position: ItemPosition) -> None:
        self.numbers = numbers
        self.position = position
        self.text = ""  # all of it, at the end

    @abstractmethod
    def item(self, status: str) -> Struct:
        """The item with this status: `in_progress` before it has any content."""

    def start(self) -> list[bytes]:
        """It begins."""
        return [self.added()]

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append the events for a delta: none by default."""
        return

    def end(self, item: items.Item) -> list[bytes]:
        """All of it was written; `item` has the text."""
        return []

    def close(self, status: str) -> tuple[StoredItem, list[bytes]]:
        """Close the item in its current state."""
        last = self.last(status)
        payload = encode(last)
        type_ = last.__struct_config__.tag
        assert isinstance(type_, str)
        done = self.numbers.encode(ItemDone, self.position.output_index, Raw(payload))
        return StoredItem(self.position.id, type_, payload), [done]

    def last(self, status: str) -> Struct:
        """The item as it stays."""
        return self.item(status)

    def added(self) -> bytes:
        """The event that announces it."""
        return self.numbers.encode(ItemAdded, self.position.output_index, self.item(IN_PROGRESS))
