"""Add the time of the first cancel call of a response."""

from alembic import op
from sqlalchemy import Column, Double

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column: it is unknown for existing responses."""
    op.add_column("responses", Column("cancel_requested_at", Double))
