"""The migrations make exactly the tables that the statements are written for."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text

from antiphon.core.errors import StoreError
from antiphon.store.migrate import migrate
from antiphon.store.open import open_store
from antiphon.store.records import NewBlob
from antiphon.store.schema import METADATA
from tests.store.samples import NOW, OWNER, append, completion, conversation, entry, item, items, job, leased
from tests.store.weighing import check_counts

JOBS = ("responses", "vector_store_files")


def indexes(connection: Connection) -> set[tuple[str, str]]:
    found = connection.execute(
        text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    )
    return {(row.name, " ".join(row.sql.split())) for row in found}


def is_declared(name: str | None, *_: object) -> bool:
    """Not a table of SQLite's text search, which no other database has."""
    return not (name or "").startswith("vector_chunk_terms")


def test_the_tables_are_those_of_the_schema():
    with create_engine("sqlite://").begin() as migrated, create_engine("sqlite://").begin() as declared:
        migrate(migrated)
        METADATA.create_all(declared)
        context = MigrationContext.configure(migrated, opts={"include_name": is_declared})
        assert compare_metadata(context, METADATA) == []
        assert indexes(migrated) == indexes(declared)
        made = set(filter(is_declared, inspect(migrated).get_table_names()))
        assert made == {*METADATA.tables, "alembic_version"}


def test_migrating_again_changes_nothing():
    with create_engine("sqlite://").begin() as connection:
        migrate(connection)
        connection.execute(text("INSERT INTO conversations VALUES ('a', 'b', 0, 0, '', 0)"))
        migrate(connection)
        assert connection.execute(text("SELECT count(*) FROM conversations")).scalar_one() == 1


async def test_what_was_there_is_counted(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(url)
    await store.responses.create(leased(prompt_ids=b"1234"), items("a"))
    await store.log.append(append(entry(0), entry(1)))
    await store.responses.create(job("b", owner=f"batches:{OWNER}"), ())
    await store.conversations.create(conversation(owner="eve"), [item("a", tokens=b"1234"), item("b")])
    await store.completions.save(completion(), items("a"))
    new = NewBlob(owner="eve", holder="f", media_type="text/plain", created_at=NOW)
    await store.blobs.put(new, b"content")
    await store.close()
    before = (
        *(f"ALTER TABLE {table} DROP COLUMN size" for table in ("responses", "conversations", "completions")),
        *(f"CREATE INDEX {table}_by_time ON {table} (created_at)" for table in ("responses", "completions")),
        "DROP TABLE usage",
        *(f"DROP INDEX {table}_{kind}" for table in JOBS for kind in ("jobs", "leased")),
        "DROP INDEX responses_answering",
        "DROP INDEX vector_store_files_detached",
        "CREATE INDEX responses_running ON responses (created_at)",
        "CREATE INDEX vector_store_files_by_status ON vector_store_files (status)",
        "UPDATE alembic_version SET version_num = '0012'",
    )
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in before:
            connection.execute(text(statement))
    engine.dispose()
    store = await open_store(url)
    assert await store.usage.of(OWNER) > await store.usage.of("eve") > 0
    await store.close()
    await check_counts(url)


async def test_tables_of_a_newer_program_are_left_alone(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    await (await open_store(url)).close()
    with create_engine(url).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer Antiphon"):
        await open_store(url)
