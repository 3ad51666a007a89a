"""Approvals."""

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table of requests for an approval that were answered."""
    op.create_table(
        "approvals",
        Column("owner", Text, primary_key=True),
        Column("id", Text, primary_key=True),
        Column("response_id", Text, nullable=False),
        Column("expires_at", Double, nullable=False),
    )
    op.create_index("approvals_expiring", "approvals", ["expires_at"])
