"""Full stores: rows written straight into the tables, and every list of a store with every filter.

`fill` makes a store of so many rows of each kind, as one client might have made them. Of its owners, `MOST`
has nearly all of them, distributed so that a filter without an index looks at every one: what it finds is
last, or is nothing. `listings` finds the lists by their signatures (a parameter of the type `Paging`), so
that a new list is measured without being named here, and a filter that is unknown here is an error.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import product
from typing import Any, get_type_hints

from msgspec import Struct
from sqlalchemy import Connection, text

from antiphon.store import completions
from antiphon.store.records import CompletionFilter, Page, Paging, ResponseKind
from antiphon.store.store import Store

MOST = "most"
"""The owner of nearly all rows."""
OTHER = "other"
"""The owner of one row in a thousand."""
FEW = 5
"""How many rows a narrow filter finds: the first ones, which lists by time reach last."""
FIRST = 10_000_000
"""The number in the first id, so that all have as many digits."""

_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows)"
_OWNER = "CASE WHEN i % 1000 = 999 THEN 'other' ELSE '{most}' END"
_ID = f"CAST({FIRST} + i AS TEXT)"
_TABLES = {
    "responses": """
        INSERT INTO responses (id, owner, created_at, status, model, background, cancel_requested, last_seq,
            request, body, calls_begun, size, expires_at)
        SELECT 'resp_' || {id}, {owner}, i, 'completed', 'm', i < :few, false, -1, :body, :body, 0, 1000,
            {later} + i FROM n""",
    "items of responses": """
        INSERT INTO items (parent, output, position, id, type, created_at, payload, owner)
        SELECT 'resp_' || {id}, false, 0, 'msg_' || {id}, 'message', i, :body, {owner} FROM n""",
    "log of one response": """
        INSERT INTO log (response_id, last_seq, first_seq, events, chunks)
        SELECT 'resp_{one}', i, i, :body, :body FROM n""",
    "conversations": """
        INSERT INTO conversations (id, owner, created_at, next_position, metadata, size)
        SELECT 'conv_' || {id}, {owner}, i, :rows, :none, 256 FROM n""",
    "items of one conversation": """
        INSERT INTO items (parent, output, position, id, type, created_at, payload, owner)
        SELECT 'conv_{one}', false, i, 'item_' || {id}, 'message', i, :body, '{most}' FROM n""",
    "items with one id": """
        INSERT INTO items (parent, output, position, id, type, created_at, payload, owner)
        SELECT 'conv_' || ({one} + 1), false, i, 'same', 'message', i, :body, '{most}' FROM n""",
    "completions": """
        INSERT INTO completions (id, owner, created_at, model, metadata, body, size, expires_at)
        SELECT 'chat_' || {id}, {owner}, i, CASE WHEN i < :few THEN 'rare' ELSE 'm' END, :none, :body, 1000,
            {later} + i FROM n""",
    "messages of one completion": """
        INSERT INTO items (parent, output, position, id, type, created_at, payload, owner)
        SELECT 'chat_{one}', false, i, 'said_' || {id}, 'message', i, :body, '{most}' FROM n""",
    "pairs that all have": """
        INSERT INTO completion_pairs (completion_id, pair, owner, created_at)
        SELECT 'chat_' || {id}, :all, {owner}, i FROM n""",
    "pairs that every second has": """
        INSERT INTO completion_pairs (completion_id, pair, owner, created_at)
        SELECT 'chat_' || {id}, CASE i % 2 WHEN 0 THEN :even ELSE :odd END, {owner}, i FROM n""",
    "pairs that few have": """
        INSERT INTO completion_pairs (completion_id, pair, owner, created_at)
        SELECT 'chat_' || {id}, :rare, {owner}, i FROM n WHERE i < :few""",
    "files": """
        INSERT INTO files (id, owner, created_at, filename, purpose, digest, size, expires_at)
        SELECT 'file_' || {id}, {owner}, i, 'a.txt', CASE WHEN i < :few THEN 'rare' ELSE 'user_data' END,
            'digest ' || i, 1000, {later} + i FROM n""",
    "containers": """
        INSERT INTO containers (id, owner, name, created_at, last_active_at, minutes, expires_at)
        SELECT 'cntr_' || {id}, {owner}, CASE WHEN i < :few THEN 'rare' ELSE 'name' END, i, i, 20,
            {later} + i FROM n""",
    "files of one container": """
        INSERT INTO container_files (id, owner, container_id, created_at, path, source, digest, size)
        SELECT 'cfile_' || {id}, '{most}', 'cntr_{one}', i, 'path' || i, 'user', 'digest ' || i, 1000
        FROM n""",
    "vector stores": """
        INSERT INTO vector_stores (id, owner, created_at, name, metadata, last_active_at, expires_at)
        SELECT 'vs_' || {id}, {owner}, i, 'name', :none, i, {later} + i FROM n""",
    "files of one vector store": """
        INSERT INTO vector_store_files (id, vector_store_id, file_id, owner, batch_id, created_at, status,
            attributes, chunk_size, chunk_overlap, usage_bytes, attempts)
        SELECT 'key_' || {id}, 'vs_{one}', 'file_' || {id}, '{most}',
            CASE WHEN i < :few THEN 'batch_few' ELSE 'batch_most' END, i,
            CASE WHEN i < :few THEN 'failed' ELSE 'completed' END, :none, 800, 400, 0, 1 FROM n""",
    "batches of files": """
        INSERT INTO vector_store_batches (id, vector_store_id, owner, created_at, cancelled)
        SELECT CASE i WHEN 0 THEN 'batch_few' ELSE 'batch_most' END, 'vs_{one}', '{most}', i, false
        FROM n WHERE i < 2""",
}
_PAIRS = {"all": ("all", "x"), "even": ("half", "even"), "odd": ("third", "odd"), "rare": ("rare", "x")}

LATER = 4e9
"""When the first row expires."""


def fill(connection: Connection, rows: int, first: int = 0, most: str = MOST) -> None:
    """Make so many rows of each kind, from the number `first` on, mostly of the owner `most`."""
    values: dict[str, Any] = {
        "rows": rows,
        "few": FEW,
        "none": b"{}",
        "body": b'{"a":"%s"}' % (b"word " * 60),
    }
    values |= {name: completions.digest(*pair) for name, pair in _PAIRS.items()}
    numbers = _NUMBERS.format(first=first)
    for table in _TABLES.values():
        insertion = table.replace("SELECT", f"{numbers} SELECT", 1)
        statement = insertion.format(
            id=_ID, owner=_OWNER.format(most=most), most=most, one=FIRST, later=LATER
        )
        named = {name: value for name, value in values.items() if f":{name}" in statement}
        connection.execute(text(statement), named)


class Listed(Struct, frozen=True):
    """A list with a filter; `sieved` if no index finds all of it. `middle` is an id in the midst of it."""

    name: str
    read: Callable[[Paging], Awaitable[Page[Any]]]
    middle: str
    sieved: bool = False

    def pages(self) -> Iterator[tuple[str, Paging]]:
        """The pages that cost the most: at both ends, and on from the midst."""
        yield "asc", Paging("asc")
        yield "desc", Paging("desc")
        yield "asc after", Paging("asc", after=self.middle)
        yield "desc before", Paging("desc", before=self.middle)


_PARENTS = {
    "owner": MOST,
    "response_id": f"resp_{FIRST}",
    "conversation_id": f"conv_{FIRST}",
    "completion_id": f"chat_{FIRST}",
    "vector_store_id": f"vs_{FIRST}",
    "container_id": f"cntr_{FIRST}",
}
"""The object whose rows are listed: the one that has nearly all."""
_FILTERS: dict[str, Sequence[Any]] = {
    "background": (None, True, False),
    "kind": (ResponseKind.RESPONSE,),
    "purpose": (None, "user_data", "rare", "none"),
    "name": (None, "name", "rare", "none"),
    "status": (None, "completed", "failed", "cancelled"),
    "batch_id": (None, "batch_most", "batch_few"),
    "only": [
        CompletionFilter(model, dict(pairs))
        for model in (None, "m", "rare")
        for pairs in (
            (),
            [("all", "x")],
            [("rare", "x")],
            [("none", "x")],
            [("all", "x"), ("third", "odd")],
            [("half", "even"), ("third", "odd")],
            [("all", "x"), ("rare", "x")],
        )
    ],
}
"""The values of each filter: none, what nearly all rows have, what few have, what none has."""
_MIDDLES = {
    "responses.page": "resp",
    "responses.summaries": "resp",
    "responses.input_items": "msg",
    "conversations.items": "item",
    "completions.list": "chat",
    "completions.messages": "said",
    "files.list": "file",
    "containers.list": "cntr",
    "containers.list_files": "cfile",
    "vector_stores.list": "vs",
    "vector_stores.files": "file",
}
"""The prefixes of the ids in each list."""


def listings(store: Store, rows: int) -> Iterator[Listed]:
    """Every list of a store that was filled with so many rows, with every filter."""
    for part_name, part in inspect.getmembers(Store, lambda member: isinstance(member, property)):
        methods = inspect.getmembers(get_type_hints(part.fget)["return"], inspect.isfunction)
        for name, method in methods:
            hints = get_type_hints(method)
            if Paging in hints.values():
                yield from _with_filters(
                    store, f"{part_name}.{name}", list(inspect.signature(method).parameters), rows
                )


def _with_filters(store: Store, name: str, parameters: Sequence[str], rows: int) -> Iterator[Listed]:
    part, _, method = name.partition(".")
    names = [each for each in parameters if each not in {"self", "paging"}]
    number = 0 if name == "responses.input_items" else rows // 2
    for values in product(*([_PARENTS[each]] if each in _PARENTS else _FILTERS[each] for each in names)):
        given = dict(zip(names, values, strict=True))
        filters = {each: value for each, value in given.items() if each in _FILTERS and value is not None}

        def read(paging: Paging, given: dict[str, Any] = given) -> Awaitable[Page[Any]]:
            found: Awaitable[Page[Any]] = getattr(getattr(store, part), method)(**given, paging=paging)
            return found

        shown = ", ".join(f"{each}={_shown(value)}" for each, value in filters.items())
        yield Listed(f"{name}({shown})", read, f"{_MIDDLES[name]}_{FIRST + number}", _is_sieved(filters))


def _shown(value: Any) -> str:
    if isinstance(value, CompletionFilter):
        return (
            " ".join(filter(None, (value.model, *(f"{key}={its}" for key, its in value.metadata.items()))))
            or "all"
        )
    return str(value)


def _is_sieved(filters: dict[str, Any]) -> bool:
    only = filters.get("only")
    return only is not None and len(only.metadata) + (only.model is not None) > 1


Call = Callable[[], Awaitable[object]]


def gets(store: Store, rows: int) -> dict[str, Call]:
    """How single objects are read, in the midst of all."""
    number = FIRST + rows // 2
    return {
        "responses.get": lambda: store.responses.get(MOST, f"resp_{number}"),
        "responses.history": lambda: store.responses.history(MOST, f"resp_{number}"),
        "responses.items": lambda: store.responses.items(MOST, [f"item_{number}"]),
        "responses.items (of one id)": lambda: store.responses.items(MOST, ["same"]),
        "conversations.item (of one id)": lambda: store.conversations.item(MOST, f"conv_{FIRST + 1}", "same"),
        "log.events_after": lambda: store.log.events_after(MOST, f"resp_{FIRST}", rows // 2),
        "conversations.get": lambda: store.conversations.get(MOST, f"conv_{number}"),
        "conversations.item": lambda: store.conversations.item(MOST, f"conv_{FIRST}", f"item_{number}"),
        "completions.get": lambda: store.completions.get(MOST, f"chat_{number}"),
        "files.get": lambda: store.files.get(MOST, f"file_{number}"),
        "containers.get": lambda: store.containers.get(MOST, f"cntr_{number}"),
        "containers.get_file": lambda: store.containers.get_file(MOST, f"cntr_{FIRST}", f"cfile_{number}"),
        "vector_stores.get": lambda: store.vector_stores.get(MOST, f"vs_{FIRST}"),
        "vector_stores.file": lambda: store.vector_stores.file(MOST, f"vs_{FIRST}", f"file_{number}"),
        "vector_stores.batch": lambda: store.vector_stores.batch(MOST, f"vs_{FIRST}", "batch_most"),
        "usage.of": lambda: store.usage.of(MOST),
    }


def deletions(store: Store, rows: int, nth: int = 0) -> dict[str, Call]:
    """How objects in the midst of all are deleted: the first ones, or as many others."""
    number = FIRST + rows // 2 + nth
    return {
        "conversations.delete_item": lambda: store.conversations.delete_item(
            MOST, f"conv_{FIRST}", f"item_{number}"
        ),
        "containers.delete_file": lambda: store.containers.delete_file(
            MOST, f"cntr_{FIRST}", f"cfile_{number}"
        ),
        "vector_stores.detach": lambda: store.vector_stores.detach(MOST, f"vs_{FIRST}", f"file_{number}"),
        "responses.delete": lambda: store.responses.delete(MOST, f"resp_{number}"),
        "files.delete": lambda: store.files.delete(MOST, f"file_{number}"),
        "completions.delete": lambda: store.completions.delete(MOST, f"chat_{number}"),
        "conversations.delete": lambda: store.conversations.delete(MOST, f"conv_{number}"),
        "containers.delete": lambda: store.containers.delete(MOST, f"cntr_{number}"),
        "vector_stores.delete": lambda: store.vector_stores.delete(MOST, f"vs_{number}"),
    }


def large_deletions(store: Store) -> dict[str, Call]:
    """How objects are deleted that all rows belong to."""
    return {
        "conversations.delete_item (of one id)": lambda: store.conversations.delete_item(
            MOST, f"conv_{FIRST + 1}", "same"
        ),
        "responses.delete (all log)": lambda: store.responses.delete(MOST, f"resp_{FIRST}"),
        "conversations.delete (all items)": lambda: store.conversations.delete(MOST, f"conv_{FIRST}"),
        "completions.delete (all messages)": lambda: store.completions.delete(MOST, f"chat_{FIRST}"),
        "containers.delete (all files)": lambda: store.containers.delete(MOST, f"cntr_{FIRST}"),
        "vector_stores.delete (all files)": lambda: store.vector_stores.delete(MOST, f"vs_{FIRST}"),
    }
