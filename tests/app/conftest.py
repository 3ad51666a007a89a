"""A store for a test, and waits that are short."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon.app import log_writer
from antiphon.store.open import open_store
from tests.app.support import Outage


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "TICK", 0.002)
    monkeypatch.setattr(log_writer, "RETRY", 0.01)


@pytest_asyncio.fixture
async def store() -> AsyncIterator[Outage]:
    store = await open_store("memory")
    yield Outage(store)
    await store.close()
