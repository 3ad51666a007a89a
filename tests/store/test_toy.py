"""The contract on a backend of another package, found by its full name; a server with it; what is no backend."""

from pathlib import Path

import pytest

from antiphon.store.open import open_store
from tests.contracts.store import StoreContract
from tests.http.api import client
from tests.server import running

NAME = "tests.store.toy"


class TestToy(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return NAME

    def counted_at(self, url: str) -> None:
        """Nothing is left of it."""


async def test_a_server_keeps_responses_there() -> None:
    async with (
        running([{"output": "Hello!"}], store=NAME) as server,
        client(server) as api,
    ):
        response = await api.post("/responses", {"model": "scripted", "input": "hi"})
        assert (await api.http.get(f"/responses/{response['id']}")).json() == response


@pytest.mark.parametrize("name", ["tests.store.samples", "tests.store.missing", "no.such.package", "records"])
async def test_a_module_that_is_no_backend_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a store is one of: none, memory"):
        await open_store(f"{name}://anything")


async def test_a_backend_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_backend.py").write_text("import there_is_no_such_driver")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="No module named 'there_is_no_such_driver'"):
        await open_store("broken_backend")
