"""A write transaction, fast statements for it, and the bytes that owners store in it."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Protocol

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Executable,
    Table,
    insert,
    text,
)

from antiphon.store.quota import Quota, counted_with
from antiphon.store.schema import Text, checked, usage

Values = dict[str, Any]
Rows = Sequence[tuple[Any, ...]]
"""Values of a `PreparedStatement`: for each time that it runs, those of its parameters in their order."""


class SqlDriver(Protocol):
    """The methods that a transaction needs of the driver of its database."""

    def execute_many(self, sql: str, rows: Rows) -> object:
        """Run a statement for each row of values."""
        ...

    def fetch_many(self, sql: str, rows: Rows) -> Sequence[Any]:
        """The results of a query for each row of values, joined."""
        ...


class PreparedStatement:
    """A statement that is compiled to SQL once for each kind of database, then run by the driver itself.

    It costs a fraction of SQLAlchemy's execution, so it is used for every statement that stores answers.
    """

    def __init__(self, statement: ClauseElement, columns: Iterable[ColumnElement[Any]]) -> None:
        """`columns` are those that the parameters are compared with or stored in, in their order."""
        self._statement = statement
        self._texts = [index for index, column in enumerate(columns) if isinstance(column.type, Text)]
        self._sql: dict[str, str] = {}

    def sql(self, dialect: Dialect) -> str:
        """Its SQL."""
        sql = self._sql.get(dialect.name)
        if sql is None:
            sql = self._sql[dialect.name] = str(self._statement.compile(dialect=dialect))
        return sql

    def checked(self, rows: Rows) -> Rows:
        """The rows; RequestError for text that no database can hold."""
        for row in rows:
            for index in self._texts:
                if row[index] is not None:
                    checked(row[index])
        return rows


def insertion(table: Table) -> PreparedStatement:
    """Inserts rows: a value for each column."""
    return PreparedStatement(insert(table), table.columns)


_COUNT = PreparedStatement(
    text(
        "INSERT INTO usage (owner, bytes) VALUES (:owner, :bytes)"
        " ON CONFLICT (owner) DO UPDATE SET bytes = usage.bytes + excluded.bytes"
    ),
    [usage.c.owner, usage.c.bytes],
)


NOBODY = "(nobody)"
"""An owner that no client is."""


class Transaction:
    """A write transaction, with the quotas in it, and the topics to notify after the commit."""

    def __init__(self, connection: Connection, driver: SqlDriver, quota: Quota) -> None:
        self.connection = connection
        self.quota = quota
        self._driver = driver
        self._sums: dict[PreparedStatement, dict[str, list[int]]] = {}
        self.topics: dict[str, None] = {}  # an ordered set

    def execute(self, statement: Executable, values: Values | None = None) -> CursorResult[Any]:
        """Run one statement, with values for its parameters."""
        return self.connection.execute(statement, values)

    def each(self, statement: PreparedStatement, rows: Rows) -> None:
        """Run a statement for each row of values; not at all if there are none."""
        if rows:
            self._driver.execute_many(statement.sql(self.connection.dialect), statement.checked(rows))

    def find(self, query: PreparedStatement, rows: Rows) -> Sequence[Any]:
        """The results of a query for each row of values."""
        return self._driver.fetch_many(query.sql(self.connection.dialect), query.checked(rows))

    def count(self, owner: str, size: int) -> None:
        """Count additional bytes for an owner. See `usage.py`."""
        self.quota.grown[counted_with(owner)] += size

    def add(self, statement: PreparedStatement, key: str, amounts: Iterable[int]) -> None:
        """Add amounts to the counters of a row, by a statement whose last parameter is its key."""
        sums = self._sums.setdefault(statement, {})
        before = sums.get(key, repeat(0))
        sums[key] = [some + more for some, more in zip(before, amounts, strict=False)]

    def store_sums(self) -> None:
        """Store the amounts, so that they are read."""
        for statement, sums in self._sums.items():
            self.each(statement, [(*amounts, key) for key, amounts in sorted(sums.items()) if any(amounts)])
        self._sums.clear()

    def store_counts(self) -> None:
        """Store the amounts, and the counted bytes: once, after all other writes.

        Each counter is locked until the commit, and always in the same order: so writers of several servers
        wait for each other only briefly, and never deadlock.
        """
        self.store_sums()
        self.each(_COUNT, [(owner, size) for owner, size in sorted(self.quota.grown.items()) if size])

    def touch(self) -> None:
        """Write something small without effect: nobody owns it, and it is nothing."""
        self.each(_COUNT, [(NOBODY, 0)])

    def wake(self, *topics: str) -> None:
        """Notify the watches of these topics, after the commit."""
        self.topics.update(dict.fromkeys(topics))
