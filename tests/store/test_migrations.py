"""The migrations make exactly the tables that the statements are written for."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, NullPool, create_engine, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

from antiphon.core.errors import StoreUnusableError
from antiphon.store.migrate import FOLDER, migrate
from antiphon.store.open import open_store
from antiphon.store.records import (
    CompletionFilter,
    FileCounts,
    NewBlob,
    Paging,
    ResponseKind,
    VectorStoreBatch,
)
from antiphon.store.schema import METADATA
from tests.store.parts.vector_stores import filled, index, indexed
from tests.store.samples import NOW, OWNER, append, completion, conversation, entry, item, items, job, leased
from tests.store.weighing import check_counts


def indexes(connection: Connection) -> set[tuple[str, str]]:
    found = connection.execute(
        text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    )
    return {(row.name, " ".join(row.sql.split())) for row in found}


def is_declared(name: str | None, *_: object) -> bool:
    """Not a table of SQLite's text search, which no other database has."""
    return not (name or "").startswith("vector_chunk_terms")


def test_the_tables_are_those_of_the_schema():
    engine = create_engine("sqlite://", poolclass=NullPool)  # each connection has a database of its own
    with engine.begin() as migrated, engine.begin() as declared:
        migrate(migrated)
        METADATA.create_all(declared)
        context = MigrationContext.configure(migrated, opts={"include_name": is_declared})
        assert compare_metadata(context, METADATA) == []
        assert indexes(migrated) == indexes(declared)
        made = set(filter(is_declared, inspect(migrated).get_table_names()))
        assert made == {*METADATA.tables, "alembic_version"}


def test_migrating_again_changes_nothing():
    with create_engine("sqlite://", poolclass=NullPool).begin() as connection:
        migrate(connection)
        connection.execute(text("INSERT INTO conversations VALUES ('a', 'b', 0, 0, '', 0)"))
        migrate(connection)
        assert connection.execute(text("SELECT count(*) FROM conversations")).scalar_one() == 1


def as_of(revision: str, current: Path, path: Path) -> None:
    """Make a store as an earlier program left it, with the rows of a current one."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("ATTACH ? AS current", (str(current),))
        for table in METADATA.tables:
            columns = [
                {row[1] for row in made.execute(f"PRAGMA {of}.table_info({table})")}
                for of in ("main", "current")
            ]
            if names := ", ".join(sorted(set.intersection(*columns))):
                made.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM current.{table}")  # noqa: S608
        if revision < "0019":  # there, batches were told by their owners
            made.execute("UPDATE main.responses SET owner = 'batches:' || owner WHERE id = 'b'")


async def stored(url: str) -> None:
    """Something of everything that was there from the beginning."""
    store = await open_store(url)
    await store.responses.create(leased(prompt_ids=b"1234"), items("a"))
    await store.log.append(append(entry(0), entry(1)))
    await store.responses.create(job("b", kind=ResponseKind.MESSAGE_BATCH), ())
    await store.conversations.create(conversation(owner="eve"), [item("a", tokens=b"1234"), item("b")])
    for number in range(3):
        record = completion(f"chat_{number}", metadata={"n": f"{number}", "ü": "\"'"})
        await store.completions.save(record, items("a"))
    new = NewBlob(owner="eve", holder="f", media_type="text/plain", created_at=NOW)
    await store.blobs.put(new, b"content")
    await filled(store, {"file_a": ["x"], "file_b": ["y"]})
    batch = VectorStoreBatch(id="b", vector_store_id="vs_1", owner=OWNER, created_at=NOW)
    attached = [indexed(name, key=f"again {name}", batch_id="b") for name in ("file_a", "file_b")]
    await store.vector_stores.attach(OWNER, "vs_1", attached, batch)
    await index(store, ["z"])
    await store.close()


@pytest.mark.parametrize("revision", ["0001", "0012", "0014", "0018"])
async def test_what_was_there_is_counted_and_found(tmp_path: Path, revision: str):
    await stored(f"sqlite:///{tmp_path}/current.db")
    as_of(revision, tmp_path / "current.db", tmp_path / "store.db")
    url = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(url)
    assert await store.usage.of(OWNER) > await store.usage.of("eve") > 0
    for metadata, found in (({"n": "1"}, 1), ({"ü": "\"'"}, 3), ({"n": "1", "ü": "\"'"}, 1), ({"n": "3"}, 0)):
        page = await store.completions.list(OWNER, CompletionFilter(None, metadata), Paging())
        assert len(page.data) == found
    if revision != "0001":  # which had no vector stores
        counts = FileCounts(in_progress=1, completed=1)
        assert (await store.vector_stores.list(OWNER, Paging())).data[0].counts == counts
        assert (await store.vector_stores.batch(OWNER, "vs_1", "b")).counts == counts
    assert (await store.responses.summaries(OWNER, False, Paging())).data[0].id == "resp_1"
    assert await store.responses.get(OWNER, "b", ResponseKind.MESSAGE_BATCH) is not None
    assert await store.responses.get(OWNER, "b") is None
    await store.close()
    await check_counts(url)


async def test_batches_in_postgresql_get_their_kind(postgresql_url: str):
    asyncpg = pytest.importorskip("asyncpg")
    await execute(postgresql_url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def upgrade(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.attributes["connection"] = connection
        command.upgrade(config, "0018")

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=partial(asyncpg.connect, postgresql_url)
    )
    async with engine.begin() as connection:
        await connection.run_sync(upgrade)
    await engine.dispose()
    columns = "id, owner, created_at, status, model, background, cancel_requested, last_seq, request, body"
    for name, owner in (("r", OWNER), ("b", f"batches:{OWNER}")):
        values = f"'{name}', '{owner}', 1, 'queued', '', true, false, -1, '', ''"
        await execute(postgresql_url, f"INSERT INTO responses ({columns}) VALUES ({values})")  # noqa: S608
    store = await open_store(postgresql_url)
    found = [
        await store.responses.get(OWNER, *named) for named in (("r",), ("b", ResponseKind.MESSAGE_BATCH))
    ]
    assert [record and record.id for record in found] == ["r", "b"]
    await store.close()


async def execute(url: str, statement: str) -> None:
    """Run a statement on a PostgreSQL database."""
    connection = await pytest.importorskip("asyncpg").connect(url)
    await connection.execute(statement)
    await connection.close()


CHANGES = {
    "UPDATE alembic_version SET version_num = '9999'": "have version 9999, from a newer Antiphon; .* up to 00",
    "ALTER TABLE responses RENAME COLUMN body TO corpus": r"by hand: responses\.body is missing",
    "DROP TABLE approvals": "by hand: approvals is missing",
    "DROP TABLE alembic_version": "of another program, or were changed by hand: .*already exists",
    "UPDATE alembic_version SET version_num = '0010'": "cannot be brought up to date",
}
"""What may happen to a store, and what the program then says."""


@pytest.mark.parametrize("change", CHANGES)
async def test_tables_that_are_not_ours_are_refused_in_words(tmp_path: Path, change: str):
    url = f"sqlite:///{tmp_path}/store.db"
    await (await open_store(url)).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(change))
    engine.dispose()
    with pytest.raises(StoreUnusableError, match=CHANGES[change]) as refused:
        await open_store(url)
    assert refused.value.why.startswith(f"{tmp_path}/store.db: ")


@pytest.mark.parametrize("change", [*CHANGES][:4])
async def test_those_of_postgresql_too(postgresql_url: str, change: str):
    await (await open_store(postgresql_url)).close()
    await execute(postgresql_url, change)
    try:
        with pytest.raises(StoreUnusableError, match=CHANGES[change]):
            await open_store(postgresql_url)
    finally:
        await execute(postgresql_url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await (await open_store(postgresql_url)).close()  # other tests use it


async def test_a_file_that_is_no_store_is_refused_in_words(tmp_path: Path):
    file = tmp_path / "store.db"
    file.write_text("Buy milk, and bread, and a book on databases.\n" * 100)
    with pytest.raises(StoreUnusableError, match=r"store\.db: file is not a database"):
        await open_store(f"sqlite:///{file}")
    assert "Buy milk" in file.read_text()
    with pytest.raises(StoreUnusableError, match="Is a directory"):
        await open_store(f"sqlite:///{tmp_path}")
    with pytest.raises(StoreUnusableError, match="/proc/version: "):
        await open_store("sqlite:////proc/version")
