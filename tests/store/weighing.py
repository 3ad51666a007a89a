"""What is stored of each owner, added up row by row, and what is counted: the law that both are the same."""

from functools import partial

import asyncpg
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from antiphon.store.schema import COUNTED
from antiphon.store.usage import ROW_BYTES

STORED = """
    WITH owned AS (
        SELECT id, owner FROM responses UNION ALL SELECT id, owner FROM conversations
        UNION ALL SELECT id, owner FROM completions
    ), stored AS (
        SELECT owner, :row + length(request) + length(body) + coalesce(length(prompt_ids), 0) AS bytes
          FROM responses
        UNION ALL SELECT owner, :row + length(metadata) FROM conversations
        UNION ALL SELECT owner, :row + length(body) + length(metadata) FROM completions
        UNION ALL SELECT owned.owner, :row + length(payload) + coalesce(length(tokens), 0)
          FROM items JOIN owned ON owned.id = items.parent
        UNION ALL SELECT owner, :row + length(events) + length(chunks)
          FROM log JOIN owned ON owned.id = log.response_id
        UNION ALL SELECT owner, size FROM blobs
        UNION ALL SELECT owner, usage_bytes FROM vector_store_files
    )
    SELECT owner, sum(bytes) FROM stored GROUP BY owner
"""
SIZES = """
    SELECT owner, sum(size) FROM (
    SELECT owner, size FROM responses UNION ALL SELECT owner, size FROM conversations
    UNION ALL SELECT owner, size FROM completions UNION ALL SELECT owner, size FROM blobs
    UNION ALL SELECT owner, usage_bytes FROM vector_store_files
    ) AS sizes GROUP BY owner
"""
FILES = """
    SELECT id, {counted}, {bytes} FROM {table} EXCEPT
    SELECT {table}.id, {sums}, {sum} FROM {table}
    LEFT JOIN vector_store_files AS file ON file.{column} = {table}.id AND file.status <> 'deleted'
    GROUP BY {table}.id
"""
"""Vector stores, or batches, that have other files than are counted."""


def _check_files(connection: Connection, table: str, column: str, size: str, total: str) -> None:
    query = FILES.format(
        table=table,
        column=column,
        counted=", ".join(f"files_{status}" for status in COUNTED),
        sums=", ".join(f"count(CASE WHEN file.status = '{status}' THEN 1 END)" for status in COUNTED),
        bytes=size,
        sum=total,
    )
    assert connection.execute(text(query)).all() == []


def _check(connection: Connection) -> None:
    counted = _sums(connection, "SELECT owner, bytes FROM usage")
    assert counted == _sums(connection, STORED.replace(":row", str(ROW_BYTES))) == _sums(connection, SIZES)
    _check_files(
        connection, "vector_stores", "vector_store_id", "usage_bytes", "coalesce(sum(file.usage_bytes), 0)"
    )
    _check_files(connection, "vector_store_batches", "batch_id", "0", "0")


def _sums(connection: Connection, query: str) -> dict[str, int]:
    """Of each owner that has something."""
    return {owner: int(size) for owner, size in connection.execute(text(query)) if size}


async def check_counts(url: str) -> None:
    """What is counted in the database at this URL, and what it has, must be the same."""
    if url.startswith("sqlite"):
        file = create_engine(url)
        with file.connect() as connection:
            _check(connection)
        file.dispose()
        return
    engine = create_async_engine("postgresql+asyncpg://", async_creator=partial(asyncpg.connect, url))
    async with engine.connect() as asynchronous:
        await asynchronous.run_sync(_check)
    await engine.dispose()
