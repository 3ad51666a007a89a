"""Opens a store by its URL. The packages for a database are imported only for that one.

A URL begins with the name of a backend: a module that has a function `open_url`, see `OpenUrl`. It is that of
a file in this package without a prefix, that of a module of another package in full. There is no list of
backends.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from antiphon.core.errors import AntiphonError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.modules import find_part
from antiphon.store.records import StoreTuning
from antiphon.store.store import Store

DEFAULT_TUNING = StoreTuning()
OWN_STORES = frozenset({"memory", "none"})
"""The stores that no other server has."""
KNOWN = "a store is one of: none, memory, sqlite, sqlite:///PATH, postgresql://USER@HOST/DATABASE, a module."
"""The error for any other URL, which is not shown: it may hold a password."""

_PACKAGE = __name__.rpartition(".")[0]
_OTHER_NAMES: Mapping[str, str] = {"memory": "sqlite", "none": "sqlite", "postgres": "postgresql"}


class OpenUrl(Protocol):
    """What a backend has as `open_url`.

    A database that SQLAlchemy knows is a `Backend` (`database.py`), which `open_sql` (`sql.py`) makes a store
    of. Any other has the parts of a `Store` itself.
    """

    async def __call__(self, url: str, limits: Limits, tuning: StoreTuning) -> Store:
        """The store at a URL that begins with the name of the backend, ready for use.

        Raises ValueError for a URL that names none; StoreError if it cannot be opened, a
        StoreUnavailableError if it cannot be reached, or not yet.
        """
        ...


def require_lasting(store: str) -> None:
    """Raise AntiphonError for a store that ends with its server, which durable streams have to outlive."""
    if store in OWN_STORES:
        message = f"--durable-streams needs a store that outlives the server: not --store {store}. "
        raise AntiphonError(message + "Choose another --store, or leave out --durable-streams.")


async def open_store(url: str, limits: Limits = DEFAULTS, tuning: StoreTuning = DEFAULT_TUNING) -> Store:
    """The store at `url`, with its tables migrated.

        `none`, `memory`: deleted with the process. `sqlite`: a file in the user's data folder.
        `sqlite:///PATH`: a file; with an absolute path there are four slashes.
        `postgresql://…`: a PostgreSQL database, in libpq's notation.
        The full name of another module, alone or before `://…`: what that opens.

    Raises ValueError for any other URL, or if packages are missing; StoreError if the database cannot be
    opened, a StoreUnavailableError if it cannot be reached, or not yet.
    """
    name = url.partition("://")[0]
    try:
        open_url: OpenUrl | None = find_part(_PACKAGE, _OTHER_NAMES.get(name, name), "open_url")
    except ImportError as error:
        raise ValueError(f"The store {name} cannot be opened: {error}") from error
    if open_url is None:
        raise ValueError(KNOWN)
    return await open_url(url, limits, tuning)


def default_path() -> Path:
    """The file of `sqlite`: where the platform wants a program's data."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(folder).expanduser() / "antiphon" / "store.db"
