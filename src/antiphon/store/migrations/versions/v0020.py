"""Add the id of the response that follows one which was steered."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Keep it in the row of the first of the two."""
    op.add_column("responses", Column("successor_id", Text))
