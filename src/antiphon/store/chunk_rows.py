"""The rows of chunks: written for the files of vector stores, and found by their terms and vectors.

Each database preselects chunks in its own way: SQLite with FTS5, PostgreSQL with a text search index. Both
store terms that were computed outside, and do not change them.
"""

from collections.abc import Collection, Mapping, Sequence
from math import log
from random import SystemRandom
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Select,
    bindparam,
    cast,
    column,
    delete,
    func,
    literal,
    literal_column,
    select,
    table,
)
from sqlalchemy import Text as PlainText
from sqlalchemy.dialects.postgresql import TSQUERY

from antiphon.store.database import Database, one_by_one
from antiphon.store.records import ChunkRecord, IndexStatus, NewChunk, Postings
from antiphon.store.schema import files, vector_chunks, vector_store_files, vector_stores
from antiphon.store.transaction import Transaction, insertion

CANDIDATES = 200
"""The most matching chunks that are returned for ranking."""

_SATURATION = 1.2
"""How soon further occurrences of a term count for little: `k1` of BM25."""

_ADD = insertion(vector_chunks)
_random = SystemRandom()
_fts = table("vector_chunk_terms", column("rowid"), column("rank"))


def size(chunk: NewChunk) -> int:
    """The size of a chunk in the accounts of owners."""
    return len(chunk.text.encode()) + len(chunk.terms.encode()) + len(chunk.vector or b"")


def add(transaction: Transaction, parent: str, vector_store_id: str, chunks: Sequence[NewChunk]) -> None:
    """Add chunks of the file in the row `parent`."""
    # Random: an `insertion` sets every column, and servers share the table.
    first = _random.getrandbits(62)
    store = _store_term(vector_store_id)
    rows = [
        {
            **asdict(chunk),
            "id": first + index,
            "parent": parent,
            "size": len(chunk.terms.split()) + 1,  # with the term of the vector store
            "terms": f"{store} {chunk.terms}",
        }
        for index, chunk in enumerate(chunks)
    ]
    transaction.execute_many(_ADD, rows)


async def delete_chunks(database: Database, parents: Collection[str]) -> None:
    """Delete the chunks of files, in small transactions."""
    while ids := await database.read(_chunk_ids, parents, database.tuning.sweep):
        await database.write(_delete, ids)


def _chunk_ids(connection: Connection, parents: Collection[str], limit: int) -> Sequence[int]:
    query = select(vector_chunks.c.id).where(vector_chunks.c.parent.in_(parents))
    return connection.scalars(query.limit(limit)).all()


@one_by_one
def _delete(transaction: Transaction, ids: Sequence[int]) -> None:
    transaction.execute(delete(vector_chunks).where(vector_chunks.c.id.in_(ids)))


def _store_term(vector_store_id: str) -> str:
    """The term that all chunks of a vector store have, and no text: it has a sign that terms have not."""
    return vector_store_id


def _searched(owner: str, ids: Sequence[str], keys: Collection[str] | None) -> ColumnElement[bool]:
    # Of a vector store that is deleted, files may be left.
    stores = select(vector_stores.c.id).where(vector_stores.c.id.in_(ids), vector_stores.c.owner == owner)
    condition = vector_store_files.c.vector_store_id.in_(stores) & (vector_store_files.c.owner == owner)
    done = condition & (vector_store_files.c.status == IndexStatus.COMPLETED)
    return done if keys is None else done & vector_store_files.c.id.in_(keys)


def attributes(connection: Connection, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
    """The attributes of the files that can be searched, by the keys of their rows."""
    searched = select(vector_store_files.c.id, vector_store_files.c.attributes)
    return {row.id: row.attributes for row in connection.execute(searched.where(_searched(owner, ids, None)))}


def _joined(*columns: Any) -> Select[Any]:
    return select(*columns).select_from(
        vector_chunks.join(vector_store_files, vector_store_files.c.id == vector_chunks.c.parent)
    )


def _matching(connection: Connection, ids: Sequence[str], terms: Sequence[str]) -> ColumnElement[bool]:
    """Chunks of these vector stores that have one of these terms."""
    if connection.dialect.name == "sqlite":
        stores, alternatives = (
            " OR ".join(f'"{term}"' for term in group) for group in (map(_store_term, ids), terms)
        )
        rowids = select(_fts.c.rowid).where(
            literal_column("vector_chunk_terms").op("MATCH")(f"({stores}) AND ({alternatives})")
        )
        return vector_chunks.c.id.in_(rowids)
    stores, alternatives = (
        " | ".join(f"'{term}'" for term in group) for group in (map(_store_term, ids), terms)
    )
    query = cast(bindparam(None, f"({stores}) & ({alternatives})", PlainText), TSQUERY)
    indexed = func.array_to_tsvector(func.string_to_array(vector_chunks.c.terms, literal_column("' '")))
    return indexed.op("@@")(query)


def postings(
    connection: Connection,
    owner: str,
    ids: Sequence[str],
    terms: Sequence[str],
    keys: Collection[str] | None,
) -> Postings:
    """The chunks that have some of the terms, the best first, and the number of each term in them."""
    searched = _searched(owner, ids, keys)
    size = _joined(func.count(), func.coalesce(func.sum(vector_chunks.c.size), 0))
    total, length = connection.execute(size.where(searched)).one()
    counts: dict[str, int] = {}
    if not total:
        return Postings(0, 0, counts, [])
    for term in terms:
        count = _joined(func.count()).where(searched, _matching(connection, ids, [term]))
        counts[term] = min(total, connection.execute(count).scalar_one())  # files may be added meanwhile
    present = [term for term in terms if counts[term]]
    if not present:
        return Postings(total, int(length), counts, [])
    query = _record_query().where(searched, _matching(connection, ids, present))
    weights = {term: log(1 + (total - counts[term] + 0.5) / (counts[term] + 0.5)) for term in present}
    ordered = query.order_by(_weight(weights).desc(), vector_chunks.c.id).limit(CANDIDATES)
    rows = [ChunkRecord(*row) for row in connection.execute(ordered)]
    return Postings(total, int(length), counts, rows)


def _record_query() -> Select[Any]:
    """The columns of a `ChunkRecord`."""
    columns = (
        vector_chunks.c.id,
        vector_store_files.c.file_id,
        files.c.filename,
        vector_store_files.c.attributes,
        vector_chunks.c.position,
        vector_chunks.c.text,
        vector_chunks.c.terms,
    )
    return _joined(*columns).join(files, files.c.id == vector_store_files.c.file_id)


def vectors(
    connection: Connection, owner: str, ids: Sequence[str], keys: Collection[str], model: str
) -> list[tuple[int, bytes]]:
    """The ids and vectors of the chunks of these files that this model has embedded."""
    query = _joined(vector_chunks.c.id, vector_chunks.c.vector)
    query = query.where(_searched(owner, ids, keys), vector_chunks.c.embedded_by == model)
    return [(row.id, row.vector) for row in connection.execute(query)]


def chunks_of(connection: Connection, owner: str, chunk_ids: Sequence[int]) -> list[ChunkRecord]:
    """The chunks of these ids, as far as they can be found."""
    query = _record_query().where(vector_chunks.c.id.in_(chunk_ids), vector_store_files.c.owner == owner)
    done = query.where(vector_store_files.c.status == IndexStatus.COMPLETED)
    return [ChunkRecord(*row) for row in connection.execute(done)]


def _weight(weights: Mapping[str, float]) -> ColumnElement[float]:
    """An approximation of the BM25 score of a chunk: the weight of each term, growing with its number."""
    total: ColumnElement[float] = literal(0.0, Float)
    for term, weight in weights.items():
        # Terms are separated by single spaces, each of which is doubled, so neighbours do not share one.
        padded = func.replace(
            literal_column("' '") + vector_chunks.c.terms + literal_column("' '"), " ", "  "
        )
        without = func.replace(padded, f" {term} ", "")
        count = cast(func.length(padded) - func.length(without), Float) / (len(term) + 2.0)
        total = total + weight * count / (count + _SATURATION)
    return total
