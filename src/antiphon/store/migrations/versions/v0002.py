"""Blobs."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, Text, text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables of blobs."""
    op.create_table(
        "blobs",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("digest", Text),
        Column("media_type", Text, nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("expires_at", Double),
    )
    op.create_index("blobs_by_digest", "blobs", ["owner", "digest"])
    _expiring_index("blobs")
    op.create_table(
        "blob_pieces",
        Column("blob_id", Text, primary_key=True),
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("data", LargeBinary, nullable=False),
    )
    op.create_table(
        "blob_holders",
        Column("holder", Text, primary_key=True),
        Column("blob_id", Text, primary_key=True),
        Column("expires_at", Double),
    )
    op.create_index("blob_holders_by_blob", "blob_holders", ["blob_id"])
    _expiring_index("blob_holders")


def _expiring_index(table: str) -> None:
    where = text("expires_at IS NOT NULL")
    op.create_index(f"{table}_expiring", table, ["expires_at"], sqlite_where=where, postgresql_where=where)
