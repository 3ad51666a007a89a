"""What all items that are being written have in common.

Deltas are frequent, so they are made by joining bytes: an event with marks in
the place of its number and its text is encoded once per item and cut at the
marks. So a delta comes from the same wire type as every other event.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from antiphon.apis.responses.events import Event, ItemAdded, ItemDone
from antiphon.apis.responses.resource import Item
from antiphon.core.events import Delta

IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"

_MARK = secrets.token_hex(16)  # in no name that a client or a model may choose
_ENCODED_MARK = msgspec.json.encode(_MARK)
_NUMBER = b'"sequence_number":'
encode = msgspec.json.Encoder().encode


class Numbers:
    """The sequence numbers of one response."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0

    def encode(self, event: Callable[..., Event], *fields: object) -> bytes:
        """The next event of the stream, with these fields."""
        payload = encode(event(self.next, *fields))
        self.next += 1
        return payload


class Frame(NamedTuple):
    """The bytes before the number, between number and text, and after the text of a delta."""

    head: bytes
    middle: bytes
    tail: bytes


NO_DELTAS = Frame(b"", b"", b"")
"""Of items that are told whole."""


def frame(event: Callable[..., Event], *fields: object) -> Frame:
    """The frame of events like this one, whose text comes after these fields."""
    before, tail = encode(event(0, *fields, _MARK)).split(_ENCODED_MARK)
    head, number, middle = before.partition(_NUMBER)
    return Frame(head + number, middle[1:], tail)


class Place(NamedTuple):
    """Where an item stands: its id, and its index in the output."""

    id: str
    output_index: int


class OpenItem(ABC):
    """An item that is being written."""

    def __init__(self, numbers: Numbers, place: Place, frame: Frame) -> None:
        self.numbers = numbers
        self.place = place
        self._frame = frame
        self._pieces: list[str] = []

    @abstractmethod
    def item(self, status: str) -> Item:
        """The item as it is now."""

    @abstractmethod
    def done(self) -> list[bytes]:
        """The events that end what is in it."""

    @property
    def text(self) -> str:
        """All that is in it so far."""
        return "".join(self._pieces)

    def opening(self) -> list[bytes]:
        """The events that announce it."""
        return [self.numbers.encode(ItemAdded, self.place.output_index, self.item(IN_PROGRESS))]

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append the events for more of it."""
        if event.text:
            self.write(event.text, out)

    def write(self, text: str, out: list[bytes]) -> None:
        """Append a delta."""
        self._pieces.append(text)
        number = self.numbers.next
        self.numbers.next = number + 1
        head, middle, tail = self._frame
        out.append(b"%b%d%b%b%b" % (head, number, middle, encode(text), tail))

    def closing(self, payload: bytes) -> list[bytes]:
        """The events that end it. `payload` is the item as it stays."""
        return [*self.done(), self.numbers.encode(ItemDone, self.place.output_index, msgspec.Raw(payload))]

    def last(self, status: str) -> Item:
        """The item as it stays."""
        return self.item(status)
