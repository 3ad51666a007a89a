"""Responses are listed by owner."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the index."""
    op.create_index("responses_by_owner", "responses", ["owner", "created_at", "id"])
