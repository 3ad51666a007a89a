"""Pages of lists, as clients read them: `object` is `list`; a client goes on from the ids at the ends."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct


class ObjectList(Struct, tag_field="object", tag="list"):
    """Part of a list. Without entries its ids are null, or empty in lists of items and of completions."""

    data: Sequence[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def encode_objects(entries: Sequence[Any], *, has_more: bool) -> bytes:
    """A page of these objects, each with an `id`, in JSON."""
    first, last = (entries[0].id, entries[-1].id) if entries else (None, None)
    return msgspec.json.encode(ObjectList(entries, first, last, has_more))


def encode_stored(entries: Sequence[tuple[str, bytes]], *, has_more: bool) -> bytes:
    """A page of these entries, each an id and its JSON, in JSON."""
    first, last = (entries[0][0], entries[-1][0]) if entries else ("", "")
    return msgspec.json.encode(ObjectList([Raw(entry) for _, entry in entries], first, last, has_more))
