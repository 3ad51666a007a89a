"""How many files of each status a vector store has, or a batch, and their bytes.

They are counted in the transaction that changes a file, in the rows of its vector store and of its batch: to
count the files when they are read would take as long as there are files.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Table, bindparam, update

from antiphon.store.database import ResultRow
from antiphon.store.records import FileCounts, IndexStatus
from antiphon.store.schema import COUNTED, vector_store_batches, vector_stores
from antiphon.store.transaction import PreparedStatement, Transaction


def _adding(table: Table, *others: str) -> PreparedStatement:
    """A statement that adds to the counters of a row: its parameters have the names of these."""
    columns = [table.c[name] for name in (*map(_counter, COUNTED), *others)]
    more = {column: column + bindparam(f"more_{column.name}") for column in columns}
    return PreparedStatement(update(table).where(table.c.id == bindparam("key")).values(more))


def _counter(status: str) -> str:
    """The column that counts the files with this status."""
    return f"files_{status}"


_IN_STORE = _adding(vector_stores, "usage_bytes")
_IN_BATCH = _adding(vector_store_batches)


def count_file(
    transaction: Transaction, row: ResultRow, status: IndexStatus | None, usage_bytes: int = 0
) -> None:
    """Count a file, whose row this was before, with its new status and bytes; with None it is gone."""
    counts = {name: (name == status) - (name == row.status) for name in COUNTED}
    _add(transaction, row.vector_store_id, row.batch_id, counts, usage_bytes - row.usage_bytes)


def count_new_file(transaction: Transaction, vector_store_id: str, batch_id: str | None) -> None:
    """Count a file that is attached."""
    counts = {name: int(name == IndexStatus.IN_PROGRESS) for name in COUNTED}
    _add(transaction, vector_store_id, batch_id, counts)


def _add(
    transaction: Transaction,
    vector_store_id: str,
    batch_id: str | None,
    counts: Mapping[str, int],
    usage_bytes: int = 0,
) -> None:
    more = {f"more_{_counter(status)}": count for status, count in counts.items()}
    transaction.add(_IN_STORE, vector_store_id, {**more, "more_usage_bytes": usage_bytes})
    if batch_id is not None:
        transaction.add(_IN_BATCH, batch_id, more)


def file_counts(values: dict[str, Any]) -> FileCounts:
    """Take the counters out of the values of a row."""
    return FileCounts(**{status: values.pop(_counter(status)) for status in COUNTED})
