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
from antiphon.apis.text_frame import parts_around
from antiphon.core import items
from antiphon.core.events import Delta

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"

_NUMBER = b'"sequence_number":'
encode = msgspec.json.Encoder().encode


class Frame(NamedTuple):
    """The bytes before the number, between number and text, and after the text of a delta."""

    head: bytes
    middle: bytes
    tail: bytes


class SequenceNumbers:
    """The sequence numbers of one response."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0

    def encode(self, event: Event, *fields: object) -> bytes:
        """The next event of the stream, with these fields."""
        payload = encode(event(self.next, *fields))
        self.next += 1
        return payload

    def delta(self, frame: Frame, text: str) -> bytes:
        """The next event of the stream, a delta with this text."""
        head, middle, tail = frame
        number = self.next
        self.next = number + 1
        return b"".join((head, encode(number), middle, encode(text), tail))


def frame(event: Event, *fields: object) -> Frame:
    """The frame of events like this one, whose text follows these fields."""
    before, tail = parts_around(lambda text: encode(event(0, *fields, text)))
    head, number, middle = before.partition(_NUMBER)
    return Frame(head + number, middle[1:], tail)


class ItemPosition(NamedTuple):
    """The position of an item: its id, and its index in the output."""

    id: str
    output_index: int


class OpenItem(ABC):
    """An item that is being written: `start`, its deltas, `end` with its content, `close` with its status.

    Each returns the events for the stream. `frame` makes the deltas of an item that shows the text
    unchanged; without one, `add` makes them.
    """

    frame: Frame | None = None

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
