"""Add the number of calls of server tools that have begun."""

from alembic import op
from sqlalchemy import Column, Integer, text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Count them in the row of a response."""
    op.add_column("responses", Column("calls_begun", Integer, nullable=False, server_default=text("0")))
