"""The first tables."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, LargeBinary, Text, text

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make every table."""
    _responses()
    _items()
    _log()
    _conversations()
    _completions()


def _responses() -> None:
    op.create_table(
        "responses",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("status", Text, nullable=False),
        Column("model", Text, nullable=False),
        Column("background", Boolean, nullable=False),
        Column("previous_id", Text),
        Column("conversation_id", Text),
        Column("cancel_requested", Boolean, nullable=False),
        Column("worker", Text),
        Column("lease_until", Double),
        Column("last_seq", BigInteger, nullable=False),
        Column("expires_at", Double),
        Column("request", LargeBinary, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("prompt_ids", LargeBinary),
    )
    op.create_index("responses_by_time", "responses", ["created_at"])
    _partial_index("responses_expiring", "responses", "expires_at", "expires_at IS NOT NULL")
    _partial_index("responses_running", "responses", "created_at", "status IN ('queued', 'in_progress')")


def _items() -> None:
    op.create_table(
        "items",
        Column("parent", Text, primary_key=True),
        Column("output", Boolean, primary_key=True),
        Column("position", Integer, primary_key=True, autoincrement=False),
        Column("id", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("payload", LargeBinary, nullable=False),
        Column("tokens", LargeBinary),
    )
    op.create_index("items_by_id", "items", ["id", "parent"])


def _log() -> None:
    op.create_table(
        "log",
        Column("response_id", Text, primary_key=True),
        Column("last_seq", BigInteger, primary_key=True, autoincrement=False),
        Column("first_seq", BigInteger, nullable=False),
        Column("events", LargeBinary, nullable=False),
        Column("chunks", LargeBinary, nullable=False),
    )


def _conversations() -> None:
    op.create_table(
        "conversations",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("next_position", Integer, nullable=False),
        Column("metadata", LargeBinary, nullable=False),
    )


def _completions() -> None:
    op.create_table(
        "completions",
        Column("id", Text, primary_key=True),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("model", Text, nullable=False),
        Column("expires_at", Double),
        Column("metadata", LargeBinary, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_index("completions_by_owner", "completions", ["owner", "created_at", "id"])
    op.create_index("completions_by_time", "completions", ["created_at"])
    _partial_index("completions_expiring", "completions", "expires_at", "expires_at IS NOT NULL")
    op.create_table(
        "completion_metadata",
        Column("completion_id", Text, primary_key=True),
        Column("key", Text, primary_key=True),
        Column("value", Text, nullable=False),
    )


def _partial_index(name: str, table: str, column: str, where: str) -> None:
    op.create_index(name, table, [column], sqlite_where=text(where), postgresql_where=text(where))
