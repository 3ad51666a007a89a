"""An item as it is stored and listed: its JSON, which never changes, and its tokens."""

import struct
from collections.abc import Iterable

from msgspec import Struct

from antiphon.core.chunks import Token


class StoredItem(Struct, frozen=True):
    """One item of a response or a conversation.

    `payload` is its wire JSON. `tokens` are the ids of the tokens that the model wrote it with, packed as
    little-endian int32: those of all items of a generation, joined, are the tokens of the generation, markup
    included. Empty for an item that no model wrote here, or whose engine returned no ids. `blobs` are the
    digests of the media that the payload refers to.
    """

    id: str
    type: str
    payload: bytes
    tokens: bytes = b""
    blobs: tuple[str, ...] = ()


def pack(spans: Iterable[tuple[Token, ...]]) -> bytes:
    """The ids of all these tokens, four bytes each."""
    ids = [token.id for span in spans for token in span]
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack(tokens: bytes) -> tuple[int, ...]:
    """The ids that `pack` packed."""
    return struct.unpack(f"<{len(tokens) // 4}i", tokens)
