"""When a response was first to be cancelled is kept."""

from alembic import op
from sqlalchemy import Column, Double

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column for it: of those that there are, nobody knows."""
    op.add_column("responses", Column("cancel_requested_at", Double))
