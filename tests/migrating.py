"""Stores of tests are migrated by what the migrations said the first time: to make their SQL takes 50 ms for each store.

The first empty database of a process is migrated as any is, and the statements are kept. `tests/store/test_migrations.py`
tests the migrations themselves, and a store of tests that is not empty is migrated by them, too.
"""

import sqlite3
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from sqlalchemy import Connection, event, inspect

from antiphon.store import postgresql, sqlite
from antiphon.store.migrate import migrate
from tests.store import toy

_READS = ("SELECT", "PRAGMA")
_statements: dict[str, list[str]] = {}
"""What makes the tables, of each kind of database."""


def migrate_again(connection: Connection) -> None:
    """What `migrate` does, and to an empty database from the second on by the letter, or as a copy."""
    kept = _statements.get(connection.dialect.name)
    if inspect(connection).get_table_names():
        migrate(connection)
    elif kept and _in_memory(connection):
        connection.exec_driver_sql("ROLLBACK")  # nothing is copied into what is in a transaction
        _copied(tuple(kept)).backup(_driver(connection))
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif kept:
        for statement in kept:
            connection.exec_driver_sql(statement)
    else:
        _statements[connection.dialect.name] = _migrate_and_note(connection)


def _in_memory(connection: Connection) -> bool:
    """No other connection can use the database."""
    driver = _driver(connection)
    return isinstance(driver, sqlite3.Connection) and not driver.execute("PRAGMA database_list").fetchone()[2]


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


@cache
def _copied(statements: tuple[str, ...]) -> sqlite3.Connection:
    """A database with the tables, to copy."""
    made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for statement in statements:
        made.execute(statement)
    return made


def _migrate_and_note(connection: Connection) -> list[str]:
    noted: list[str] = []

    def note(_: object, __: object, statement: str, given: Any, *___: object) -> None:
        if not statement.lstrip().startswith(_READS):
            assert not given, statement  # all of it is in the statement
            noted.append(statement)

    event.listen(connection, "before_cursor_execute", note)
    migrate(connection)
    event.remove(connection, "before_cursor_execute", note)
    return noted


@pytest.fixture(scope="session", autouse=True)
def quick_migrations() -> Iterator[None]:
    """Every store that tests of this process open."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (sqlite, postgresql, toy):
            patch.setattr(module, "migrate", migrate_again)
        yield
