"""Items refer to blobs."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add a column for their digests."""
    op.add_column("items", Column("blobs", Text))
