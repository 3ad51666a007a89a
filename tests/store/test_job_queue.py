"""A claim costs the same however many jobs wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, NullPool, Table, create_engine, insert

from antiphon.core.limits import DEFAULTS
from antiphon.store.job_queue import OWNERS, JobQueue
from antiphon.store.quota import Quota
from antiphon.store.records import StoreTuning
from antiphon.store.schema import BACKGROUND_JOBS, INDEXING_JOBS, METADATA, responses, vector_store_files
from antiphon.store.transaction import Transaction

NOW = 1000.0
_OTHER = {"model": "m", "cancel_requested": False, "last_seq": -1, "request": b"", "body": b""}
ROWS: dict[Table, dict[str, Any]] = {
    responses: {**_OTHER, "status": "queued", "background": True},
    vector_store_files: {
        "vector_store_id": "vs",
        "file_id": "f",
        "status": "in_progress",
        "attributes": b"",
        "chunk_size": 1,
        "chunk_overlap": 0,
        "usage_bytes": 0,
        "attempts": 0,
    },
}
CONDITIONS = {responses: BACKGROUND_JOBS, vector_store_files: INDEXING_JOBS}


@contextmanager
def filled(table: Table, waiting: int, others: int) -> Iterator[Connection]:
    """A database in which many jobs of one owner wait, and some of others; some of each run."""
    owners = ["many"] * waiting + [f"other{number}" for number in range(others)] * 20
    rows = [
        {**ROWS[table], "id": f"{place:06}", "owner": owner, "created_at": float(place), "worker": None}
        | {"lease_until": None}
        for place, owner in enumerate(owners)
    ]
    for row in rows[:8]:
        row |= {"worker": "w", "lease_until": NOW + 1, "status": "in_progress"}
    with create_engine("sqlite://", poolclass=NullPool).begin() as connection:
        METADATA.create_all(connection)
        connection.execute(insert(table), rows)
        yield connection


def cost(table: Table, waiting: int, others: int = 2) -> int:
    """How many hundreds of instructions SQLite needs for a claim."""
    queue, counted = JobQueue(table, CONDITIONS[table], table.c), 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with filled(table, waiting, others) as connection:
        transaction = Transaction(connection, None, Quota(connection, DEFAULTS, {}, NOW), StoreTuning())  # type: ignore[arg-type]
        assert queue.next(transaction, NOW) is not None
        connection.connection.dbapi_connection.set_progress_handler(count, 100)  # type: ignore[union-attr]
        row = queue.next(transaction, NOW)
    assert row is not None
    assert row.owner.startswith("other")
    return counted


@pytest.mark.parametrize("table", [responses, vector_store_files], ids=str)
def test_a_claim_costs_the_same_however_many_jobs_wait(table: Table) -> None:
    assert cost(table, 5000) <= 1.5 * cost(table, 50)


def test_a_claim_looks_at_some_owners_only() -> None:
    assert cost(responses, 50, 20 * OWNERS) <= 1.5 * cost(responses, 50, OWNERS)
