"""Containers, and their files."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, Text

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "containers",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("last_active_at", Double, nullable=False),
        Column("minutes", Integer, nullable=False),
        Column("expires_at", Double, nullable=False),
        Column("interpreter", Text),
    )
    op.create_index("containers_by_owner", "containers", ["owner", "created_at", "id"])
    op.create_index("containers_expiring", "containers", ["expires_at"])
    op.create_table(
        "container_files",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("container_id", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("path", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("digest", Text, nullable=False),
        Column("size", BigInteger, nullable=False),
    )
    op.create_index("container_files_by_container", "container_files", ["container_id", "created_at", "id"])
