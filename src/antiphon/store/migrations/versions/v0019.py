"""Batches of messages have a kind, in place of owners with a prefix."""

from alembic import op
from sqlalchemy import Column, Text, text

revision = "0019"
down_revision = "0018"

_RUNNING = text("status IN ('queued', 'in_progress') AND background")
_OWNERS = """
    UPDATE responses SET kind = 'message_batch', owner = substr(owner, 9)
    WHERE substr(owner, 1, 8) = 'batches:'
"""


def upgrade() -> None:
    """Give the batches back to their owners, and begin the indexes of lists with the kind."""
    op.add_column("responses", Column("kind", Text, nullable=False, server_default=text("'response'")))
    for name in ("responses_by_owner", "responses_by_background", "responses_jobs"):
        op.drop_index(name, "responses")
    op.execute(_OWNERS)
    op.create_index("responses_by_owner", "responses", ["owner", "kind", "created_at", "id"])
    op.create_index(
        "responses_by_background", "responses", ["owner", "kind", "background", "created_at", "id"]
    )
    waiting = ["kind", "owner", "created_at", "id"]
    op.create_index("responses_jobs", "responses", waiting, sqlite_where=_RUNNING, postgresql_where=_RUNNING)
