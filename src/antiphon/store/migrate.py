"""Brings the tables up to date, with the migrations in `migrations/`."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from antiphon.core.errors import StoreError

FOLDER = Path(__file__).parent / "migrations"


def migrate(connection: Connection) -> None:
    """Run the missing migrations, in the open transaction; a second server waits for its lock.

    Raises StoreError for tables of a newer Antiphon.
    """
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError("The store was made by a newer Antiphon. Update this one.") from error
