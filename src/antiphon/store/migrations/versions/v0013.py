"""Count the bytes that owners have stored; drop indexes by time that are not used any more."""

from alembic import op
from sqlalchemy import BigInteger, Column, Text, text

revision = "0013"
down_revision = "0012"

_ITEMS = """
    coalesce((SELECT sum(256 + length(payload) + coalesce(length(tokens), 0)) FROM items
              WHERE items.parent = {}.id), 0)
"""
_SIZES = {
    "responses": """
        256 + length(request) + length(body) + coalesce(length(prompt_ids), 0)
        + coalesce((SELECT sum(256 + length(events) + length(chunks)) FROM log
                    WHERE log.response_id = responses.id), 0)
    """,
    "conversations": "256 + length(metadata)",
    "completions": "256 + length(body) + length(metadata)",
}
_COUNT = """
    INSERT INTO usage (owner, bytes)
    SELECT CASE WHEN owner LIKE 'batches:%' THEN substr(owner, 9) ELSE owner END, sum(size) FROM (
        SELECT owner, size FROM responses UNION ALL SELECT owner, size FROM conversations
        UNION ALL SELECT owner, size FROM completions UNION ALL SELECT owner, size FROM blobs
        UNION ALL SELECT owner, usage_bytes FROM vector_store_files
    ) AS stored GROUP BY 1
"""


def upgrade() -> None:
    """Add the sizes and counters of existing rows."""
    for table, size in _SIZES.items():
        op.add_column(table, Column("size", BigInteger, nullable=False, server_default=text("0")))
        op.execute(" ".join(("UPDATE", table, "SET size =", size, "+", _ITEMS.format(table))))
    for table in ("responses", "completions"):
        op.drop_index(f"{table}_by_time", table)
    op.create_table(
        "usage",
        Column("owner", Text, primary_key=True),
        Column("bytes", BigInteger, nullable=False),
    )
    op.execute(_COUNT)
