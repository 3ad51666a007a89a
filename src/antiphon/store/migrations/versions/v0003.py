"""Files."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text, text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table of files."""
    op.create_table(
        "files",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("filename", Text, nullable=False),
        Column("purpose", Text, nullable=False),
        Column("digest", Text, nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("expires_at", Double),
    )
    op.create_index("files_by_owner", "files", ["owner", "created_at", "id"])
    where = text("expires_at IS NOT NULL")
    op.create_index("files_expiring", "files", ["expires_at"], sqlite_where=where, postgresql_where=where)
