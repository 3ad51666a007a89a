"""Jobs are claimed in fair shares of their owners, by indexes of those that wait and those that run."""

from alembic import op
from sqlalchemy import text

revision = "0015"
down_revision = "0014"

_ANSWERS = "status IN ('queued', 'in_progress') AND {}"
_JOBS = {"responses": _ANSWERS.format("background"), "vector_store_files": "status = 'in_progress'"}


def upgrade() -> None:
    """Make them, and others in the place of two that would be used for claims, too."""
    op.drop_index("responses_running", "responses")
    op.drop_index("vector_store_files_by_status", "vector_store_files")
    _index("vector_store_files_detached", "vector_store_files", ["id"], "status = 'deleted'")
    _index("responses_answering", "responses", ["created_at"], _ANSWERS.format("NOT background"))
    for table, jobs in _JOBS.items():
        _index(f"{table}_jobs", table, ["owner", "created_at", "id"], jobs)
        _index(f"{table}_leased", table, ["owner"], f"{jobs} AND worker IS NOT NULL")


def _index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
