"""Events whose only variable part is a text, as most events are: the bytes around it are made once."""

import secrets
from collections.abc import Callable

import msgspec

from antiphon.core.chunks import Token

MARK = secrets.token_hex(16)
"""Stands for the text while the bytes around it are made: in no name that a client or a model may choose."""
_ENCODED = msgspec.json.encode(MARK)
_encode = msgspec.json.Encoder().encode


def parts_around(event: Callable[[str], bytes]) -> tuple[bytes, ...]:
    """The bytes before and after the text, as JSON, in the event of a text, and between two of them."""
    return (*event(MARK).split(_ENCODED),)


class TextFrame:
    """Encodes such events, see `DeltaEncoder`; a client may also join its `parts` with a text itself."""

    __slots__ = ("_event", "_parts")

    def __init__(self, event: Callable[[str], bytes]) -> None:
        self._event = event
        self._parts: tuple[bytes, ...] | None = None

    @property
    def parts(self) -> tuple[bytes, ...]:
        """See `parts_around`. They are made for the first text: many answers have, say, no reasoning."""
        if self._parts is None:
            self._parts = parts_around(self._event)
        return self._parts

    def __call__(self, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        """The event of this text."""
        return _encode(text).join(self.parts)
