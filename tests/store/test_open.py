"""Which URL opens what."""

import builtins
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.store.open import default_path, open_store


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nothing",
        "mysql://me:secret@host/db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/a",
    ],
)
async def test_other_urls_are_refused_without_showing_them(url: str):
    with pytest.raises(ValueError, match="memory, sqlite, sqlite:///PATH, postgresql://") as caught:
        await open_store(url)
    assert "secret" not in str(caught.value)


async def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without_asyncpg(name: str, *args: Any, **options: Any) -> Any:
        if name == "asyncpg":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.delitem(sys.modules, "antiphon.store.postgresql", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_asyncpg)
    with pytest.raises(ValueError, match=r"pip install .*\[postgresql\]'"):
        await open_store("postgresql://host/db")


async def test_an_sqlite_without_full_text_search_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    class Without(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> Any:
            if "fts5" in sql:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Without))
    with pytest.raises(ValueError, match="no FTS5"):
        await open_store("memory")


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        ("linux", "~/.local/share"),
        ("darwin", "~/Library/Application Support"),
        ("win32", "~/AppData/Local"),
    ],
)
def test_the_file_lies_where_the_platform_wants_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, folder: str
):
    monkeypatch.setattr(sys, "platform", platform)
    for variable in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    assert default_path() == Path(folder).expanduser() / "antiphon" / "store.db"


@pytest.mark.parametrize(("platform", "variable"), [("linux", "XDG_DATA_HOME"), ("win32", "LOCALAPPDATA")])
def test_a_user_may_choose_another_folder_for_data(
    monkeypatch: pytest.MonkeyPatch, platform: str, variable: str
):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, "/elsewhere")
    assert default_path() == Path("/elsewhere/antiphon/store.db")


def test_a_database_is_imported_when_it_is_opened():
    program = "import sys, antiphon.store.open; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert not {"sqlalchemy", "alembic", "asyncpg", "sqlite3"} & set(loaded.stdout.split())
