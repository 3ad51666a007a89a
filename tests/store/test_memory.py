"""The contract, in memory."""

import pytest

from tests.contracts.store import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return "memory"

    def counted_at(self, url: str) -> None:
        """Nothing is left of it."""
