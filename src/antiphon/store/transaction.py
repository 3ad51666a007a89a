"""A write transaction, fast statements for it, and the bytes that owners store in it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    ClauseElement,
    Connection,
    CursorResult,
    Dialect,
    Executable,
    Select,
    Table,
    bindparam,
    insert,
    text,
)
from sqlalchemy.sql.compiler import SQLCompiler

from antiphon.store.quota import Quota
from antiphon.store.records import StoreTuning
from antiphon.store.schema import Text, checked

Values = dict[str, Any]
Rows = Sequence[Values]
"""Values of a `PreparedStatement`: for each time that it runs, those of its parameters by name."""
DriverRows = Sequence[tuple[Any, ...]]
"""The same, in the order of the SQL."""


class SqlDriver(Protocol):
    """The methods that a transaction needs of the driver of its database."""

    def execute_many(self, sql: str, rows: DriverRows) -> object:
        """Run a statement for each row of values."""
        ...

    def fetch_many(self, sql: str, rows: DriverRows) -> Sequence[Sequence[Any]]:
        """The results of a query for each row of values, joined."""
        ...


class _Compiled(Struct, frozen=True):
    """A statement for one kind of database: its parameters in the order of the SQL; those that are text."""

    sql: str
    parameters: Sequence[str]
    texts: Sequence[str]
    columns: Sequence[str]
    """Of what a query finds."""

    def values(self, rows: Rows) -> DriverRows:
        """The rows as the driver takes them. RequestError for text that no database can hold."""
        for row in rows:
            for name in self.texts:
                if row[name] is not None:
                    checked(row[name])
        return [tuple(map(row.__getitem__, self.parameters)) for row in rows]


class PreparedStatement:
    """A statement that is compiled to SQL once for each kind of database, then run by the driver itself.

    It costs a fraction of SQLAlchemy's execution, so it is used for every statement that stores answers.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def compiled(self, dialect: Dialect) -> _Compiled:
        """The statement for a kind of database."""
        if dialect.name not in self._compiled:
            compiled = self._statement.compile(dialect=dialect)
            assert isinstance(compiled, SQLCompiler)
            parameters = compiled.positiontup or ()
            texts = [name for name in parameters if isinstance(compiled.binds[name].type, Text)]
            query = self._statement
            columns = query.selected_columns.keys() if isinstance(query, Select) else ()
            self._compiled[dialect.name] = _Compiled(str(compiled), parameters, texts, columns)
        return self._compiled[dialect.name]


def insertion(table: Table) -> PreparedStatement:
    """Inserts rows: a value for each column, by its name."""
    return PreparedStatement(insert(table))


_COUNT = PreparedStatement(
    text(
        "INSERT INTO usage (owner, bytes) VALUES (:owner, :bytes)"
        " ON CONFLICT (owner) DO UPDATE SET bytes = usage.bytes + excluded.bytes"
    ).bindparams(bindparam("owner", type_=Text), bindparam("bytes", type_=BigInteger))
)


NOBODY = "(nobody)"
"""An owner that no client is."""


class Transaction:
    """A write transaction, with the quotas in it, and the topics to notify after the commit."""

    def __init__(self, connection: Connection, driver: SqlDriver, quota: Quota, tuning: StoreTuning) -> None:
        self.connection = connection
        self.quota = quota
        self.tuning = tuning
        self._driver = driver
        self._sums: dict[PreparedStatement, dict[str, Counter[str]]] = {}
        self.topics: dict[str, None] = {}  # an ordered set

    def execute(self, statement: Executable, values: Values | None = None) -> CursorResult[Any]:
        """Run one statement, with values for its parameters."""
        return self.connection.execute(statement, values)

    def execute_many(self, statement: PreparedStatement, rows: Rows) -> None:
        """Run a statement for each row of values; not at all if there are none."""
        if rows:
            compiled = statement.compiled(self.connection.dialect)
            self._driver.execute_many(compiled.sql, compiled.values(rows))

    def find(self, query: PreparedStatement, rows: Rows) -> Sequence[Values]:
        """The results of a query for each row of values, by the names of its columns."""
        compiled = query.compiled(self.connection.dialect)
        results = self._driver.fetch_many(compiled.sql, compiled.values(rows))
        return [dict(zip(compiled.columns, row, strict=True)) for row in results]

    def count(self, owner: str, size: int) -> None:
        """Count additional bytes for an owner. See `usage.py`."""
        self.quota.grown[owner] += size

    def add(self, statement: PreparedStatement, key: str, amounts: Mapping[str, int]) -> None:
        """Add amounts, the parameters of a statement, to the counters of the row with this `key`."""
        self._sums.setdefault(statement, {}).setdefault(key, Counter()).update(amounts)

    def store_sums(self) -> None:
        """Store the amounts, so that they are read."""
        for statement, sums in self._sums.items():
            changed = [(key, sums[key]) for key in sorted(sums) if any(sums[key].values())]
            self.execute_many(statement, [{**amounts, "key": key} for key, amounts in changed])
        self._sums.clear()

    def store_counts(self) -> None:
        """Store the amounts, and the counted bytes: once, after all other writes.

        Each counter is locked until the commit, and always in the same order: so writers of several servers
        wait for each other only briefly, and never deadlock.
        """
        self.store_sums()
        grown = sorted(self.quota.grown.items())
        self.execute_many(_COUNT, [{"owner": owner, "bytes": size} for owner, size in grown if size])

    def touch(self) -> None:
        """Write something small without effect: nobody owns it, and it is nothing."""
        self.execute_many(_COUNT, [{"owner": NOBODY, "bytes": 0}])

    def wake(self, *topics: str) -> None:
        """Notify the watches of these topics, after the commit."""
        self.topics.update(dict.fromkeys(topics))
