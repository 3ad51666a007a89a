"""Every filter of a list is found by an index."""

import json
from hashlib import sha256

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, Text, text

revision = "0016"
down_revision = "0015"

_ROWS = 1000
"""How many completions are read at a time."""
_BY = {
    "responses_by_background": ("responses", ["owner", "background", "created_at", "id"]),
    "completions_by_model": ("completions", ["owner", "model", "created_at", "id"]),
    "files_by_purpose": ("files", ["owner", "purpose", "created_at", "id"]),
    "containers_by_name": ("containers", ["owner", "name", "created_at", "id"]),
    "vector_store_files_by_store_status": (
        "vector_store_files",
        ["vector_store_id", "status", "created_at", "file_id"],
    ),
    "vector_store_files_by_batch_status": (
        "vector_store_files",
        ["vector_store_id", "batch_id", "status", "created_at", "file_id"],
    ),
    "vector_store_files_by_file": ("vector_store_files", ["file_id", "vector_store_id"]),
}
_THERE = "status <> 'deleted'"
_PARTIAL = {
    "vector_store_files_by_store": (
        "vector_store_files",
        ["vector_store_id", "created_at", "file_id"],
        _THERE,
    ),
    "vector_store_files_by_batch": (
        "vector_store_files",
        ["vector_store_id", "batch_id", "created_at", "file_id"],
        _THERE,
    ),
    "items_with_blobs": ("items", ["parent"], "blobs IS NOT NULL"),
}
_ITS = {
    "vector_stores": "file.vector_store_id = vector_stores.id",
    "vector_store_batches": """file.vector_store_id = vector_store_batches.vector_store_id
        AND file.batch_id = vector_store_batches.id""",
}
_COUNT = """
    UPDATE {table} SET files_{status} = (
        SELECT count(*) FROM vector_store_files AS file WHERE {which} AND file.status = '{status}'
    )
"""
_SUM_BYTES = """
    UPDATE vector_stores SET usage_bytes = coalesce((
        SELECT sum(usage_bytes) FROM vector_store_files AS file
        WHERE file.vector_store_id = vector_stores.id AND file.status <> 'deleted'
    ), 0)
"""


def upgrade() -> None:
    """Make the indexes, and the digests of the pairs of metadata that there are."""
    for name in ("vector_store_files_by_file", "vector_store_files_by_store"):
        op.drop_index(name, "vector_store_files")
    for name, (table, columns) in _BY.items():
        op.create_index(name, table, columns)
    for name, (table, columns, condition) in _PARTIAL.items():
        where = text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
    _count_files()
    op.create_table("deletions", Column("kind", Text, primary_key=True), Column("id", Text, primary_key=True))
    op.create_table(
        "completion_pairs",
        Column("completion_id", Text, primary_key=True),
        Column("pair", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
    )
    _fill()
    columns = ["owner", "pair", "created_at", "completion_id"]
    op.create_index("completion_pairs_by_owner", "completion_pairs", columns)
    op.drop_table("completion_metadata")


def _count_files() -> None:
    op.add_column(
        "vector_stores", Column("usage_bytes", BigInteger, nullable=False, server_default=text("0"))
    )
    op.execute(_SUM_BYTES)
    for status in ("in_progress", "completed", "failed", "cancelled"):
        for table, which in _ITS.items():
            column = Column(f"files_{status}", Integer, nullable=False, server_default=text("0"))
            op.add_column(table, column)
            op.execute(_COUNT.format(table=table, status=status, which=which))


def _fill() -> None:
    connection, last = op.get_bind(), ""
    some = text(
        "SELECT id, owner, created_at, metadata FROM completions WHERE id > :last ORDER BY id LIMIT :rows"
    )
    add = text("INSERT INTO completion_pairs VALUES (:id, :pair, :owner, :created_at)")
    while rows := connection.execute(some, {"last": last, "rows": _ROWS}).all():
        last = rows[-1].id
        found = [
            {"id": row.id, "pair": _digest(*pair), "owner": row.owner, "created_at": row.created_at}
            for row in rows
            for pair in json.loads(row.metadata).items()
        ]
        if found:
            connection.execute(add, found)


def _digest(key: str, value: str) -> str:
    return sha256(f"{key}\0{value}".encode()).hexdigest()[:32]
