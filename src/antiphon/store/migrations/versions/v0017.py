"""Add the number of times that the engine of a response has died."""

from alembic import op
from sqlalchemy import Column, Integer, text

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Count them in the row of a response."""
    op.add_column("responses", Column("engine_deaths", Integer, nullable=False, server_default=text("0")))
