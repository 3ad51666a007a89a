"""Conversations are counted by owner."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the index."""
    op.create_index("conversations_by_owner", "conversations", ["owner"])
