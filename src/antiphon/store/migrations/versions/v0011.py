"""Chunks of vector stores have vectors."""

from alembic import op
from sqlalchemy import Column, LargeBinary, Text

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add columns for them, and for the model that made them."""
    op.add_column("vector_chunks", Column("embedded_by", Text))
    op.add_column("vector_chunks", Column("vector", LargeBinary))
