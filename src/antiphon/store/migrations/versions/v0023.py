"""Add the time until which somebody reads a durable stream."""

from alembic import op
from sqlalchemy import Column, Double

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add its column. Streams of earlier versions are not durable."""
    op.add_column("responses", Column("read_until", Double))
