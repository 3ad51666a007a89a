"""Add the limits of keys that all servers share."""

from alembic import op
from sqlalchemy import Column, Double, Integer, Text

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "key_limits",
        Column("owner", Text, primary_key=True),
        Column("kind", Text, primary_key=True),
        Column("full_at", Double, nullable=False),
    )
    op.create_table(
        "limit_servers",
        Column("server", Text, primary_key=True),
        Column("seen_at", Double, nullable=False),
    )
    op.create_table(
        "key_places",
        Column("owner", Text, primary_key=True),
        Column("server", Text, primary_key=True),
        Column("places", Integer, nullable=False),
        Column("until", Double, nullable=False),
    )
