"""How many files of each status a vector store has, or a batch, and their bytes.

They are counted in the transaction that changes a file, in the rows of its vector store and of its batch: to
count the files when they are read would take as long as there are files.
"""

from typing import Any

from sqlalchemy import ColumnElement, Table, bindparam, update

from antiphon.store.database import Found
from antiphon.store.records import FileCounts, IndexStatus
from antiphon.store.schema import COUNTED, vector_store_batches, vector_stores
from antiphon.store.transaction import PreparedStatement, Transaction


def _adding(table: Table, *others: str) -> PreparedStatement:
    """A statement that adds to the counters of a row of the table."""
    columns: list[ColumnElement[Any]] = [table.c[f"files_{status}"] for status in COUNTED]
    columns += [table.c[name] for name in others]
    more = {column: column + bindparam(f"more_{number}") for number, column in enumerate(columns)}
    statement = update(table).where(table.c.id == bindparam("key")).values(more)
    return PreparedStatement(statement, [*columns, table.c.id])


_IN_STORE = _adding(vector_stores, "usage_bytes")
_IN_BATCH = _adding(vector_store_batches)


def count_file(
    transaction: Transaction, row: Found, status: IndexStatus | None, usage_bytes: int = 0
) -> None:
    """Count a file, whose row this was before, with its new status and bytes; with None it is gone."""
    amounts = [(each == status) - (each == row.status) for each in COUNTED]
    transaction.add(_IN_STORE, row.vector_store_id, [*amounts, usage_bytes - row.usage_bytes])
    if row.batch_id is not None:
        transaction.add(_IN_BATCH, row.batch_id, amounts)


def count_new_file(transaction: Transaction, vector_store_id: str, batch_id: str | None) -> None:
    """Count a file that is attached."""
    amounts = [each == IndexStatus.IN_PROGRESS for each in COUNTED]
    transaction.add(_IN_STORE, vector_store_id, [*amounts, 0])
    if batch_id is not None:
        transaction.add(_IN_BATCH, batch_id, amounts)


def file_counts(values: dict[str, Any]) -> FileCounts:
    """Take the counters out of the values of a row."""
    return FileCounts(**{status: values.pop(f"files_{status}") for status in COUNTED})
