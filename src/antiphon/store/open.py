"""Opens a store by its URL. The packages for a database are imported only for that one."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.core.errors import install_extra
from antiphon.store.records import StoreLimits
from antiphon.store.store import Store

if TYPE_CHECKING:
    from antiphon.store.database import Backend

DEFAULT_LIMITS = StoreLimits()


async def open_store(url: str, limits: StoreLimits = DEFAULT_LIMITS) -> Store:
    """The store at `url`, with its tables migrated.

        `none`, `memory`: deleted with the process. `sqlite`: a file in the user's data folder.
        `sqlite:///PATH`: a file; with an absolute path there are four slashes.
        `postgresql://…`: a PostgreSQL database, in libpq's notation.

    Raises ValueError for any other URL, or if packages are missing; StoreError if the database cannot be
    opened, a StoreUnavailableError if it cannot be reached, or not yet.
    """
    from antiphon.store.sql import SqlStore  # noqa: PLC0415 - too slow for the start of the program

    store = SqlStore(_backend(url, limits), limits)
    await store.open()
    return store


def default_path() -> Path:
    """The file of `sqlite`: where the platform wants a program's data."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(folder).expanduser() / "antiphon" / "store.db"


def _backend(url: str, limits: StoreLimits) -> "Backend":
    match url.partition("://"):
        case "none" | "memory", "", _:
            return _sqlite(None, limits)
        case "sqlite", "", _:
            return _sqlite(default_path(), limits)
        case "sqlite", _, path if path.startswith("/") and path[1:] not in ("", ":memory:"):
            return _sqlite(Path(path[1:]).expanduser(), limits)
        case "postgresql" | "postgres", "://", _:
            return _postgresql(url, limits)
    # The URL itself may hold a password.
    raise ValueError(
        "a store is one of: none, memory, sqlite, sqlite:///PATH, postgresql://USER@HOST/DATABASE."
    )


def _sqlite(path: Path | None, limits: StoreLimits) -> "Backend":
    from antiphon.store.sqlite import Sqlite  # noqa: PLC0415

    return Sqlite(path, limits)


def _postgresql(url: str, limits: StoreLimits) -> "Backend":
    try:
        from antiphon.store.postgresql import Postgresql  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(install_extra("PostgreSQL", "postgresql")) from error
    return Postgresql(url, limits)
