"""Which URL opens what."""

import builtins
import subprocess
import sys
from typing import Any

import pytest

from antiphon.core.errors import StoreError
from antiphon.store.open import open_store


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
    with pytest.raises(StoreError, match=r"antiphon\[postgresql\]"):
        await open_store("postgresql://host/db")


def test_a_database_is_imported_when_it_is_opened():
    program = "import sys, antiphon.store.open; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert not {"sqlalchemy", "alembic", "asyncpg", "sqlite3"} & set(loaded.stdout.split())
