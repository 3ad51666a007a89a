"""Items have an owner, by which those are found that requests refer to."""

from alembic import op
from sqlalchemy import Column, Text, text

revision = "0018"
down_revision = "0017"

_OWNER = "(SELECT owner FROM {table} WHERE {table}.id = items.parent)"
_PARENTS = ("responses", "conversations", "completions")


def upgrade() -> None:
    """Take the owners from the parents."""
    op.drop_index("items_by_id", "items")
    op.add_column("items", Column("owner", Text, nullable=False, server_default=text("''")))
    owners = ", ".join(_OWNER.format(table=table) for table in _PARENTS)
    op.execute(f"UPDATE items SET owner = coalesce({owners}, '')")  # noqa: S608
    op.create_index("items_by_id", "items", ["id", "owner", "parent", "position"])
