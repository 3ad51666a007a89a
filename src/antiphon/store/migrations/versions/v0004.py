"""Vector stores."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, LargeBinary, Text, text

revision = "0004"
down_revision = "0003"

# The tokenizer must not change terms, which are computed outside: it only separates them.
_SEARCH_SQLITE = (
    """CREATE VIRTUAL TABLE vector_chunk_terms
    USING fts5(terms, content=vector_chunks, content_rowid=id, tokenize="ascii tokenchars '_-'")""",
    """CREATE TRIGGER vector_chunks_added AFTER INSERT ON vector_chunks BEGIN
    INSERT INTO vector_chunk_terms(rowid, terms) VALUES (new.id, new.terms); END""",
    """CREATE TRIGGER vector_chunks_deleted AFTER DELETE ON vector_chunks BEGIN
    INSERT INTO vector_chunk_terms(vector_chunk_terms, rowid, terms)
    VALUES ('delete', old.id, old.terms); END""",
)
_SEARCH_POSTGRESQL = """CREATE INDEX vector_chunks_by_terms ON vector_chunks
    USING gin (array_to_tsvector(string_to_array(terms, ' ')))"""


def upgrade() -> None:
    """Make the tables of vector stores, and their search indexes."""
    _vector_stores()
    _files()
    _chunks()


def _vector_stores() -> None:
    op.create_table(
        "vector_stores",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("name", Text, nullable=False),
        Column("description", Text),
        Column("metadata", LargeBinary, nullable=False),
        Column("expires_after_seconds", Integer),
        Column("last_active_at", Double, nullable=False),
        Column("expires_at", Double),
    )
    op.create_index("vector_stores_by_owner", "vector_stores", ["owner", "created_at", "id"])
    where = text("expires_at IS NOT NULL")
    op.create_index(
        "vector_stores_expiring", "vector_stores", ["expires_at"], sqlite_where=where, postgresql_where=where
    )
    op.create_table(
        "vector_store_batches",
        Column("id", Text, primary_key=True),
        Column("vector_store_id", Text, nullable=False),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("cancelled", Boolean, nullable=False),
    )
    op.create_index("vector_store_batches_by_store", "vector_store_batches", ["vector_store_id"])


def _files() -> None:
    op.create_table(
        "vector_store_files",
        Column("id", Text, primary_key=True),
        Column("vector_store_id", Text, nullable=False),
        Column("file_id", Text, nullable=False),
        Column("owner", Text, nullable=False),
        Column("batch_id", Text),
        Column("created_at", Double, nullable=False),
        Column("status", Text, nullable=False),
        Column("error", LargeBinary),
        Column("attributes", LargeBinary, nullable=False),
        Column("chunk_size", Integer, nullable=False),
        Column("chunk_overlap", Integer, nullable=False),
        Column("usage_bytes", BigInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("worker", Text),
        Column("lease_until", Double),
    )
    for name, *columns in (
        ("store", "vector_store_id", "created_at", "file_id"),
        ("file", "file_id"),
        ("owner", "owner"),
        ("status", "status", "created_at"),
    ):
        op.create_index(f"vector_store_files_by_{name}", "vector_store_files", columns)


def _chunks() -> None:
    op.create_table(
        "vector_chunks",
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("parent", Text, nullable=False),
        Column("position", Integer, nullable=False),
        Column("size", Integer, nullable=False),
        Column("text", Text, nullable=False),
        Column("terms", Text, nullable=False),
    )
    op.create_index("vector_chunks_by_parent", "vector_chunks", ["parent", "position"])
    if op.get_bind().dialect.name == "sqlite":
        for statement in _SEARCH_SQLITE:
            op.execute(statement)
    else:
        op.execute(_SEARCH_POSTGRESQL)
