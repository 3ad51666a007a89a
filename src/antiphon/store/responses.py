"""Responses with their items: created, finished, read along their chains."""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import (
    CTE,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    literal,
    null,
    select,
    update,
)

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import Limits
from antiphon.core.recent_values import RecentValues
from antiphon.store import blobs, conversations, items, log
from antiphon.store.database import Database, ResultRow
from antiphon.store.delete import delete_parent
from antiphon.store.pages import Listing, existing, page, page_within
from antiphon.store.quota import Quota, refusal
from antiphon.store.records import (
    ItemRecord,
    Lease,
    Page,
    Paging,
    ResponseEnd,
    ResponseKind,
    ResponseRecord,
    ResponseStatus,
    ResponseSummary,
    StoreTuning,
    Verdict,
)
from antiphon.store.schema import WAITS_FOR_ANOTHER, responses
from antiphon.store.schema import conversations as conversation_table
from antiphon.store.schema import items as item_table
from antiphon.store.store import JOBS, events_of
from antiphon.store.transaction import PreparedStatement, Transaction, Values, insertion
from antiphon.store.usage import size_of

LOOKED_UP = 50
"""The most items that one read looks up by their ids."""

ITEM_BYTES = 512
"""About the memory of an item besides its payload, and of a response besides its items."""

SAME_IDS = 100
"""The most items with one id that are looked at: those of a completion are not found, nor those of an object
that is deleted."""

_NAMED = and_(
    responses.c.id == bindparam("response_id"),
    responses.c.owner == bindparam("owner"),
    responses.c.kind == bindparam("kind"),
)
_CREATE = insertion(responses)
_END = PreparedStatement(
    update(responses)
    .where(responses.c.id == bindparam("key"))
    .values(
        status=bindparam("new_status"),
        worker=null(),
        lease_until=null(),
        last_seq=bindparam("new_seq"),
        body=bindparam("new_body"),
        size=bindparam("new_size"),
    )
)
_BEGIN = PreparedStatement(
    update(responses).where(responses.c.id == bindparam("key"), WAITS_FOR_ANOTHER).values(lease_until=null())
)
_FIND = select(responses).where(_NAMED)
_EXISTS = select(responses.c.id).where(_NAMED)


def _links() -> CTE:
    """A response and those before it, up to a limit."""
    columns = responses.c.id, responses.c.previous_id, responses.c.status
    links = select(*columns, literal(1).label("depth")).where(_NAMED).cte("links", recursive=True)
    previous = select(*columns, links.c.depth + 1).where(
        responses.c.id == links.c.previous_id,
        responses.c.owner == bindparam("owner"),
        links.c.depth < bindparam("limit"),
    )
    return links.union_all(previous)


def _items_of(links: CTE) -> Select[Any]:
    """Their items, oldest first; one row without an item for a response that has none."""
    return (
        select(links.c.id.label("response_id"), *items.COLUMNS)
        .outerjoin(item_table, item_table.c.parent == links.c.id)
        .order_by(links.c.depth.desc(), item_table.c.output, item_table.c.position)
    )


_LINKS = select(_links()).order_by("depth")
_ITEMS_OF_LINKS = _items_of(_links())


def _item() -> Select[Any]:
    """The payload of an item of a response or a conversation, of the first of so many with this id."""
    key = (item_table.c.parent, item_table.c.output, item_table.c.position)
    condition = (item_table.c.id == bindparam("item_id")) & (item_table.c.owner == bindparam("owner"))
    matches = select(*key).where(condition).limit(SAME_IDS).subquery()
    # Scalars, and not EXISTS: PostgreSQL would read all responses for that.
    parents = [
        select(parent_table.c.id).where(parent_table.c.id == matches.c.parent).scalar_subquery()
        for parent_table in (responses, conversation_table)
    ]
    there = func.coalesce(*parents).is_not(None)
    same = and_(*(column == matches.c[column.name] for column in key))
    return select(item_table.c.payload).join(matches, same).where(there).limit(1)


_ITEM = _item()

Creation = tuple[ResponseRecord, Sequence[ItemRecord]]
Save = tuple[ResponseRecord, Sequence[ItemRecord], Sequence[ItemRecord]]


def record_of(row: ResultRow) -> ResponseRecord:
    """A response from all its columns."""
    values = dict(row._mapping)
    worker, until = values.pop("worker"), values.pop("lease_until")
    del values["size"]
    values |= {"status": ResponseStatus(values["status"]), "kind": ResponseKind(values["kind"])}
    return ResponseRecord(lease=Lease(worker, until) if worker else None, **values)


def _size(record: ResponseRecord, *stored: Sequence[ItemRecord]) -> int:
    return size_of(record.request, record.body, record.prompt_ids) + sum(map(items.size, stored))


def _row(record: ResponseRecord, size: int) -> Values:
    """All columns of a response: its fields, but for the lease, which has two."""
    values = asdict(record)
    lease = values.pop("lease")
    held = {"worker": lease and lease.worker, "lease_until": lease and lease.until}
    named = {"status": record.status.value, "kind": record.kind.value}
    return {**values, **held, **named, "size": size}


def missing(response_id: str, **details: str) -> NotFoundError:
    """The response does not exist, or belongs to another owner."""
    return NotFoundError(f"Response with id {response_id!r} not found.", **details)


Refusal = RequestError | None
"""Why a record was not stored."""


def _refusals(transaction: Transaction, records: Sequence[ResponseRecord]) -> list[Refusal]:
    """A NotFoundError for each whose conversation does not exist."""
    named = [record.conversation_id for record in records if record.conversation_id is not None]
    owners = conversations.owners(transaction, named)
    return [
        None
        if record.conversation_id is None or owners.get(record.conversation_id) == record.owner
        else conversations.missing(record.conversation_id, param="conversation")
        for record in records
    ]


def create_all(transaction: Transaction, creations: Sequence[Creation]) -> list[Refusal]:
    """Store the creations for which there is room."""
    refusals = _refusals(transaction, [record for record, _ in creations])
    sizes = [_size(record, inputs) for record, inputs in creations]
    for index, (record, _) in enumerate(creations):
        refusals[index] = refusals[index] or _too_large(transaction.quota, record, sizes[index])
        if refusals[index] is None:
            transaction.count(record.owner, sizes[index])
    stored = [
        (record, inputs, size)
        for (record, inputs), size, refusal in zip(creations, sizes, refusals, strict=True)
        if refusal is None
    ]
    transaction.execute_many(_CREATE, [_row(record, size) for record, _, size in stored])
    rows = [row for record, inputs, _ in stored for row in items.input_rows(record.owner, record.id, inputs)]
    items.add(transaction, rows)
    for record, inputs, _ in stored:
        blobs.hold_for(transaction, record.owner, record.id, inputs)
    if any(record.background and record.lease is None for record, _, _ in stored):
        transaction.wake(JOBS)
    return refusals


def _too_large(quota: Quota, record: ResponseRecord, size: int) -> Refusal:
    """Why there is no room for a response."""
    over = "response_bytes" if size > quota.limits.response_bytes else quota.exceeded(record.owner, size)
    return refusal(over, quota.limits, "store") if over else None


def save_all(transaction: Transaction, saves: Sequence[Save]) -> list[Refusal]:
    """Store all whose conversation exists."""
    refusals = _refusals(transaction, [record for record, _, _ in saves])
    stored = [save for save, refusal in zip(saves, refusals, strict=True) if refusal is None]
    created: list[Values] = []
    for record, inputs, output in stored:
        size = _size(record, inputs, output)
        created.append(_row(record, size))
        transaction.count(record.owner, size)
    transaction.execute_many(_CREATE, created)
    rows = [
        row
        for record, inputs, output in stored
        for row in (
            *items.input_rows(record.owner, record.id, inputs),
            *items.output_rows(record.owner, record.id, output),
        )
    ]
    items.add(transaction, rows)
    for record, inputs, output in stored:
        blobs.hold_for(transaction, record.owner, record.id, inputs)
        if record.conversation_id is not None:
            conversations.append(transaction, record.conversation_id, (*inputs, *output))
    return refusals


def finish_all(transaction: Transaction, ends: Sequence[ResponseEnd]) -> list[Verdict]:
    """The result of each."""
    states = log.lock(transaction, [end.response_id for end in ends])
    changes: list[Values] = []
    entries: list[Values] = []
    outputs: list[Values] = []

    def take(end: ResponseEnd) -> Verdict:
        at = states.get(end.response_id)
        verdict = at.judge(end.worker, end.entries) if at else Verdict.GONE
        if at and verdict is Verdict.ACCEPTED:
            entries.extend(at.take(end.entries, transaction))
            at.status = end.status
            at.grow(len(end.body) - at.body_bytes + items.size(end.output), transaction)
            changes.append(
                {
                    "key": at.id,
                    "new_status": end.status.value,
                    "new_seq": at.last_seq,
                    "new_body": end.body,
                    "new_size": at.size,
                }
            )
            outputs.extend(items.output_rows(at.owner, at.id, end.output))
            if at.conversation_id is not None:
                conversations.append(transaction, at.conversation_id, end.conversation)
        return verdict

    verdicts = [take(end) for end in ends]
    transaction.execute_many(_END, changes)
    log.add_entries(transaction, entries)
    items.add(transaction, outputs)
    transaction.wake(*(events_of(change["key"]) for change in changes))
    begin_successors(transaction, [states[change["key"]].successor_id for change in changes])
    return verdicts


def begin_successors(transaction: Transaction, ids: Sequence[str | None]) -> None:
    """Let workers begin the responses that wait for the end of others."""
    waiting = [{"key": response_id} for response_id in ids if response_id is not None]
    if waiting:
        transaction.execute_many(_BEGIN, waiting)
        transaction.wake(JOBS)


def _named(owner: str, response_id: str, kind: ResponseKind = ResponseKind.RESPONSE) -> dict[str, Any]:
    return {"owner": owner, "response_id": response_id, "kind": kind.value}


def find(
    connection: Connection, owner: str, response_id: str, kind: ResponseKind = ResponseKind.RESPONSE
) -> ResponseRecord | None:
    """The response."""
    row = connection.execute(_FIND, _named(owner, response_id, kind)).first()
    return record_of(row) if row else None


def _page(
    connection: Connection, owner: str, kind: ResponseKind, paging: Paging, max_bytes: int
) -> Page[ResponseRecord]:
    row_page = page_within(connection, _listing(select(responses), owner, kind), _BYTES, paging, max_bytes)
    return Page([record_of(row) for row in row_page.data], row_page.has_more)


_SUMMARY = select(*(responses.c[name] for name in ResponseSummary.__struct_fields__))
_BYTES = func.length(responses.c.request) + func.length(responses.c.body)


def _listing(columns: Select[Any], owner: str, kind: ResponseKind = ResponseKind.RESPONSE) -> Listing:
    query = columns.where(responses.c.owner == owner, responses.c.kind == kind.value)
    return Listing(query, (responses.c.created_at, responses.c.id))


def _summaries(
    connection: Connection, owner: str, background: bool | None, paging: Paging
) -> Page[ResponseSummary]:
    listing = _listing(_SUMMARY, owner)
    if background is not None:
        listing = replace(
            listing, rows=listing.rows.where(responses.c.background == background), unfiltered=listing
        )
    row_page = page(connection, listing, paging)
    data = [
        ResponseSummary(row.id, row.created_at, ResponseStatus(row.status), row.model, row.background)
        for row in row_page.data
    ]
    return Page(data, row_page.has_more)


def _input_items(
    connection: Connection, owner: str, response_id: str, paging: Paging, max_bytes: int
) -> Page[ItemRecord]:
    with existing(lambda: _require(connection, owner, response_id)):
        return items.input_page(connection, owner, response_id, paging, max_bytes)


def _require(connection: Connection, owner: str, response_id: str) -> None:
    if connection.execute(_EXISTS, _named(owner, response_id)).first() is None:
        raise missing(response_id)


def _items(connection: Connection, owner: str, item_ids: Sequence[str]) -> dict[str, bytes]:
    payloads = {
        item_id: connection.execute(_ITEM, {"owner": owner, "item_id": item_id}).scalar()
        for item_id in item_ids
    }
    return {item_id: payload for item_id, payload in payloads.items() if payload is not None}


class _Histories:
    """Reads histories: of up to `chain` responses, and `history_bytes` of items.

    Up to `known_item_bytes` of the items of responses that have ended are remembered: they do not change.
    """

    def __init__(self, limits: Limits, tuning: StoreTuning) -> None:
        self._bytes = limits.history_bytes
        self._chain = tuning.chain
        self._known = RecentValues[str, Sequence[ItemRecord]](tuning.known_item_bytes // 2)

    def read(self, connection: Connection, owner: str, response_id: str) -> list[ItemRecord]:
        """The items of a response and of those before it, oldest first."""
        values = _named(owner, response_id)
        links = connection.execute(_LINKS, {**values, "limit": self._chain}).all()  # the newest one first
        _check_chain(links[-1] if links else None, response_id, self._chain)
        parts = [self._known.get(link.id) for link in links]
        # All up to the oldest one that is not known: a history grows at its end.
        new = max((link.depth for link, part in zip(links, parts, strict=True) if part is None), default=0)
        history = [item for part in reversed(parts[new:]) for item in part or ()]
        rows = connection.execute(_ITEMS_OF_LINKS, {**values, "limit": new}) if new else ()
        read: dict[str, list[ItemRecord]] = {}
        for row in items.within(self._bytes, chain(history, rows), "previous_response_id")[len(history) :]:
            read.setdefault(row.response_id, []).extend([] if row.id is None else [items.record(row)])
        for link in reversed(links[:new]):
            if link.id not in read:  # deleted meanwhile
                raise _missing_link(link.id)
            history += read[link.id]
            if ResponseStatus(link.status).terminal:
                memory = ITEM_BYTES * (1 + len(read[link.id])) + items.size(read[link.id])
                self._known.put(link.id, read[link.id], memory)
        return history


def _check_chain(oldest: ResultRow | None, response_id: str, limit: int) -> None:
    """The chain must be complete: its oldest response has no predecessor."""
    absent = oldest.previous_id if oldest else response_id
    if absent is None:
        return
    if oldest and oldest.depth == limit:
        raise RequestError(
            f"More than {limit} responses are linked. Use a conversation instead.",
            param="previous_response_id",
        )
    raise _missing_link(absent)


def _missing_link(response_id: str) -> NotFoundError:
    return missing(response_id, param="previous_response_id", code="previous_response_not_found")


class SqlResponses:
    """`Responses`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._histories = _Histories(database.limits, database.tuning)

    async def create(self, record: ResponseRecord, input_items: Sequence[ItemRecord]) -> None:
        if refusal := await self._database.write(create_all, (record, items.distinct(input_items))):
            raise refusal

    async def save(
        self, record: ResponseRecord, input_items: Sequence[ItemRecord], output: Sequence[ItemRecord]
    ) -> None:
        if refusal := await self._database.write(save_all, (record, items.distinct(input_items), output)):
            raise refusal

    async def get(
        self, owner: str, response_id: str, kind: ResponseKind = ResponseKind.RESPONSE
    ) -> ResponseRecord | None:
        return await self._database.read(find, owner, response_id, kind)

    async def page(self, owner: str, kind: ResponseKind, paging: Paging) -> Page[ResponseRecord]:
        return await self._database.read(_page, owner, kind, paging, self._database.limits.page_bytes)

    async def summaries(self, owner: str, background: bool | None, paging: Paging) -> Page[ResponseSummary]:
        return await self._database.read(_summaries, owner, background, paging)

    async def finish(self, end: ResponseEnd) -> Verdict:
        return await self._database.write(finish_all, end)

    async def delete(self, owner: str, response_id: str, kind: ResponseKind = ResponseKind.RESPONSE) -> bool:
        condition = (responses.c.id == response_id) & (responses.c.owner == owner)
        return await delete_parent(self._database, responses, condition & (responses.c.kind == kind.value))

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page[ItemRecord]:
        return await self._database.read(
            _input_items, owner, response_id, paging, self._database.limits.page_bytes
        )

    async def items(self, owner: str, item_ids: Collection[str]) -> dict[str, bytes]:
        payloads: dict[str, bytes] = {}
        ids = list(item_ids)
        for first in range(0, len(ids), LOOKED_UP):
            payloads |= await self._database.read(_items, owner, ids[first : first + LOOKED_UP])
        return payloads

    async def history(self, owner: str, response_id: str) -> list[ItemRecord]:
        return await self._database.read(self._histories.read, owner, response_id)
