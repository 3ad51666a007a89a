"""Add the loads of replicas, and which are drained, that all servers share."""

from alembic import op
from sqlalchemy import Column, Double, LargeBinary, Text

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "replica_loads",
        Column("process", Text, primary_key=True),
        Column("server", Text, nullable=False),
        Column("told_at", Double, nullable=False),
        Column("loads", LargeBinary, nullable=False),
    )
    op.create_table(
        "drained_replicas",
        Column("replica", Text, primary_key=True),
        Column("drained_by", Text, nullable=False),
        Column("drained_at", Double, nullable=False),
    )
