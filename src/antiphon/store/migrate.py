"""Brings the tables up to date, with the migrations in `migrations/`."""

import sqlite3
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError, ProgrammingError

from antiphon.core.errors import StoreUnusableError
from antiphon.store.schema import METADATA

FOLDER = Path(__file__).parent / "migrations"


def migrate(connection: Connection) -> None:
    """Run the missing migrations, in the open transaction; a second server waits for its lock.

    Raises StoreUnusableError for tables of a newer Antiphon, and for those that no Antiphon has made so.
    """
    config = _config()
    config.attributes["connection"] = connection
    revision = MigrationContext.configure(connection).get_current_revision()
    revisions = _revisions()
    if revision is not None and revision not in revisions:
        raise StoreUnusableError(
            f"its tables have version {revision}, from a newer Antiphon; this one knows versions up to "
            f"{revisions[0]}. Update Antiphon, or restore a backup from before the update"
        )
    try:
        if revision != revisions[0]:
            command.upgrade(config, "head")
    except DBAPIError as error:
        if not _is_about_tables(error):
            raise
        raise StoreUnusableError(
            "its tables are of another program, or were changed by hand: they cannot be brought up to date "
            f"({error.orig}). Restore a backup"
        ) from error
    if missing := _missing(connection):
        raise StoreUnusableError(
            f"its tables were changed by hand: {missing} is missing. Restore a backup, or undo the change"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


@cache
def _revisions() -> list[str]:
    """The newest first. To find them, each migration is run as a module."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def _is_about_tables(error: DBAPIError) -> bool:
    """Whether a statement does not fit the tables; otherwise the database is unavailable, locked or full."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return isinstance(error, ProgrammingError) or code == sqlite3.SQLITE_ERROR


def _missing(connection: Connection) -> str | None:
    """A table or column that is not there."""
    inspector = inspect(connection)
    columns_by_table = {
        name: {column["name"] for column in columns}
        for (_, name), columns in inspector.get_multi_columns().items()
    }
    for table in METADATA.tables.values():
        if table.name not in columns_by_table:
            return table.name
        for column in table.columns:
            if column.name not in columns_by_table[table.name]:
                return f"{table.name}.{column.name}"
    return None
