"""Vector stores over HTTP, through the OpenAI SDK: filled, indexed in the background, searched."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import hypot
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from structlog.testing import capture_logs

from antiphon.core.errors import EngineNotReadyError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.vectors import EmbeddingRequest, Embeddings
from antiphon.engines.scripted import ScriptedEngine
from tests.files import docx_of, pdf_of
from tests.http.api import sdk
from tests.openai_schema import validate
from tests.server import Running, running

CATS = b"# Cats\n\nCats purr when they are content. They sleep for sixteen hours a day."
DOGS = b"<!doctype html><title>Dogs</title><p>Dogs bark. They are walked twice a day."


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running([{"output": "Hi"}], api_key=("alice", "eve"), limit=Limits(vector_stores=5)) as server:
        yield server


async def put(client: AsyncOpenAI, store: str, name: str, content: bytes, **attributes: Any) -> str:
    """A file in a vector store, indexed, and its id."""
    file = await client.files.create(file=(name, content), purpose="assistants")
    done = await client.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store, attributes=attributes, poll_interval_ms=5
    )
    assert done.status == "completed", done
    return file.id


async def found(client: AsyncOpenAI, store: str, query: str | list[str], **options: Any) -> list[str]:
    page = await client.vector_stores.search(store, query=query, **options)
    return [result.filename for result in page.data]


async def test_files_are_searched(alice: AsyncOpenAI, http: httpx.AsyncClient):
    store = await alice.vector_stores.create(name="pets", metadata={"k": "v"})
    assert (store.status, store.file_counts.total, store.usage_bytes) == ("completed", 0, 0)
    validate("VectorStoreObject", (await http.get(f"/vector_stores/{store.id}")).json())
    cats = await put(alice, store.id, "cats.md", CATS, kind="cat", legs=4)
    await put(alice, store.id, "dogs", DOGS, kind="dog")
    await put(alice, store.id, "birds.pdf", pdf_of("Birds sing in the morning."), kind="bird")
    await put(alice, store.id, "fish.docx", docx_of("Fishes swim."), kind="fish")

    page = await alice.vector_stores.search(store.id, query="Do cats sleep?")
    assert [result.filename for result in page.data] == ["cats.md"]
    result = page.data[0]
    assert (result.file_id, result.attributes) == (cats, {"kind": "cat", "legs": 4})
    assert 0 < result.score <= 1
    assert result.content[0].text == CATS.decode()
    body = {"query": ["singing", "swims"], "max_num_results": 2}
    both = (await http.post(f"/vector_stores/{store.id}/search", json=body)).json()
    validate("VectorStoreSearchResultsPage", both)
    assert {each["filename"] for each in both["data"]} == {"birds.pdf", "fish.docx"}
    assert both["search_query"] == ["singing", "swims"]

    assert set(await found(alice, store.id, "day")) == {"cats.md", "dogs"}
    assert await found(alice, store.id, "day", max_num_results=1) in (["cats.md"], ["dogs"])
    only: Any = {"type": "eq", "key": "kind", "value": "dog"}
    alias = {"query": "day", "filter": only}
    narrowed = (await http.post(f"/vector_stores/{store.id}/search", json=alias)).json()
    assert [each["filename"] for each in narrowed["data"]] == ["dogs"]
    assert await found(alice, store.id, "day", filters=only) == ["dogs"]
    nested: Any = {"type": "or", "filters": [{"type": "gt", "key": "legs", "value": 3}, only]}
    assert set(await found(alice, store.id, "day morning", filters=nested)) == {"cats.md", "dogs"}
    assert await found(alice, store.id, "day", ranking_options={"score_threshold": 0.99}) == []
    assert await found(alice, store.id, "nothing such") == []
    assert await found(alice, store.id, "…") == []

    now = await alice.vector_stores.retrieve(store.id)
    assert (now.file_counts.completed, now.file_counts.total) == (4, 4)
    assert now.usage_bytes > 0


async def test_a_vector_store_comes_and_goes(alice: AsyncOpenAI, http: httpx.AsyncClient):
    file = await alice.files.create(file=("a.txt", b"alpha beta"), purpose="assistants")
    store = await alice.vector_stores.create(
        file_ids=[file.id], expires_after={"anchor": "last_active_at", "days": 2}
    )
    assert store.expires_at == pytest.approx(store.created_at + 2 * 86400, abs=1)
    assert store.file_counts.total == 1
    polled = await alice.vector_stores.files.poll(file.id, vector_store_id=store.id, poll_interval_ms=5)
    assert (polled.status, polled.last_error) == ("completed", None)
    validate("VectorStoreFileObject", (await http.get(f"/vector_stores/{store.id}/files/{file.id}")).json())
    content = await alice.vector_stores.files.content(file.id, vector_store_id=store.id)
    assert [each.text for each in content.data] == ["alpha beta"]

    changed = await alice.vector_stores.update(store.id, name="new", metadata={"a": "b"})
    assert (changed.name, changed.metadata, changed.expires_at) == ("new", {"a": "b"}, store.expires_at)
    kept = await alice.vector_stores.update(store.id, expires_after=None)
    assert kept.expires_at is None
    assert [it.id async for it in await alice.vector_stores.list()] == [store.id]
    updated = await alice.vector_stores.files.update(
        file.id, vector_store_id=store.id, attributes={"x": True}
    )
    assert updated.attributes == {"x": True}
    assert (await alice.vector_stores.files.delete(file.id, vector_store_id=store.id)).deleted
    assert await found(alice, store.id, "alpha") == []
    assert (await alice.files.retrieve(file.id)).id == file.id
    assert (await alice.vector_stores.delete(store.id)).deleted
    with pytest.raises(NotFoundError) as caught:
        await alice.vector_stores.retrieve(store.id)
    assert caught.value.param == "vector_store_id"


async def test_batches(alice: AsyncOpenAI, http: httpx.AsyncClient):
    store = await alice.vector_stores.create()
    batch = await alice.vector_stores.file_batches.upload_and_poll(
        store.id, files=[("a.txt", CATS), ("b.bin", b"\x89PNG\0\0"), ("c.txt", b" ")], poll_interval_ms=5
    )
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 1, 2)
    raw = (await http.get(f"/vector_stores/{store.id}/file_batches/{batch.id}")).json()
    validate("VectorStoreFileBatchObject", raw)
    listed = await alice.vector_stores.file_batches.list_files(
        batch.id, vector_store_id=store.id, filter="failed"
    )
    errors = {it.last_error.code for it in listed.data if it.last_error}
    assert errors == {"unsupported_file", "invalid_file"}
    ids = [it.id async for it in await alice.vector_stores.files.list(store.id)]
    again = await alice.vector_stores.file_batches.create(
        store.id,
        files=[{"file_id": ids[0], "attributes": {"n": 1}}],
    )
    cancelled = await alice.vector_stores.file_batches.cancel(again.id, vector_store_id=store.id)
    assert cancelled.status == "cancelled"
    assert cancelled.file_counts.in_progress == 0


async def test_chunks_of_another_size(alice: AsyncOpenAI):
    words = " ".join(f"w{number}" for number in range(500))
    file = await alice.files.create(file=("w.txt", words.encode()), purpose="assistants")
    store = await alice.vector_stores.create()
    sizes: Any = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    done = await alice.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store.id, chunking_strategy=sizes, poll_interval_ms=5
    )
    assert done.chunking_strategy is not None
    assert done.chunking_strategy.to_dict() == sizes
    content = await alice.vector_stores.files.content(file.id, vector_store_id=store.id)
    assert " ".join(each.text or "" for each in content.data) == words
    page = await alice.vector_stores.search(store.id, query="w499")
    assert page.data[0].content[0].text.endswith("w499")


async def test_owners_have_nothing_in_common(server: Running, alice: AsyncOpenAI):
    store = await alice.vector_stores.create()
    file_id = await put(alice, store.id, "cats.md", CATS)
    async with sdk(server, "eve") as eve:
        assert (await eve.vector_stores.list()).data == []
        hers = await eve.vector_stores.create()
        for attempt in (
            lambda: eve.vector_stores.retrieve(store.id),
            lambda: eve.vector_stores.search(store.id, query="cats"),
            lambda: eve.vector_stores.update(store.id, name="x"),
            lambda: eve.vector_stores.delete(store.id),
            lambda: eve.vector_stores.files.list(store.id),
            lambda: eve.vector_stores.files.content(file_id, vector_store_id=store.id),
            lambda: eve.vector_stores.files.create(hers.id, file_id=file_id),
            lambda: eve.vector_stores.files.create(store.id, file_id=file_id),
        ):
            with pytest.raises(NotFoundError):
                await attempt()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"expires_after": {"anchor": "last_active_at", "days": 0}}, "expires_after.days"),
        ("", {"chunking_strategy": {"type": "static"}}, "chunking_strategy.static"),
        ("", {"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ("/search", {"query": "x", "rewrite_query": True}, "rewrite_query"),
        ("/search", {"query": []}, "query"),
        ("/search", {"query": ["x", "x" * 4097]}, "query"),
        ("/search", {"query": "x", "max_num_results": 51}, "max_num_results"),
        ("/search", {"query": "x", "ranking_options": {"ranker": "best"}}, "ranking_options.ranker"),
        (
            "/search",
            {"query": "x", "ranking_options": {"score_threshold": 2}},
            "ranking_options.score_threshold",
        ),
        (
            "/search",
            {"query": "x", "ranking_options": {"hybrid_search": {"embedding_weight": 1, "text_weight": 1}}},
            "ranking_options.hybrid_search",
        ),
        ("/search", {"query": "x", "filters": {"type": "like", "key": "k", "value": "v"}}, "filters.type"),
        ("/search", {"query": "x", "filter": {"type": "like", "key": "k", "value": "v"}}, "filter.type"),
        ("/search", {"query": "x", "where": {"k": "v"}}, "where"),
        ("/search", {"query": "x", "file_ids": ["file_1"]}, "file_ids"),
        ("/search", {"query": "x", "ranking_options": {"min_score": 1}}, "ranking_options.min_score"),
        (
            "/search",
            {"query": "x", "filters": {"type": "eq", "key": "k", "value": "v", "filters": []}},
            "filters.filters",
        ),
        (
            "/search",
            {
                "query": "x",
                "filters": {"type": "eq", "key": "k", "value": "v"},
                "filter": {"type": "eq", "key": "k", "value": "w"},
            },
            "filter",
        ),
        ("/search", {"query": "x", "filters": {"type": "and", "filters": [1]}}, "filters.filters[0]"),
        ("/search", {"query": "x", "filters": {"type": "in", "key": "k", "value": "v"}}, "filters.value"),
        ("/search", {"query": "x", "filters": {"type": "eq", "key": "k", "value": None}}, "filters.value"),
        ("/search", {"query": "x", "filters": {"type": "eq", "value": "v"}}, "filters.key"),
        ("/files", {"file_id": "file-x"}, "file_id"),
        ("/files", {"file_id": "x", "attributes": {"k": [1]}}, "attributes[...]"),
        ("/file_batches", {}, "file_ids"),
        ("/file_batches", {"file_ids": ["file-x"]}, "file_ids"),
        ("", {"file_ids": ["file-x"]}, "file_ids"),
        ("/file_batches", {"file_ids": ["a"], "files": [{"file_id": "a"}]}, "file_ids"),
        (
            "/files",
            {
                "file_id": "x",
                "chunking_strategy": {
                    "type": "static",
                    "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 60},
                },
            },
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
    ],
)
async def test_what_is_refused(http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str):
    made = (await http.post("/vector_stores", json={})).json()
    answer = await http.post(f"/vector_stores/{made['id']}{path}" if path else "/vector_stores", json=body)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert error["param"] == param, error


async def test_a_filter_on_status_is_checked(http: httpx.AsyncClient):
    made = (await http.post("/vector_stores", json={})).json()
    answer = await http.get(f"/vector_stores/{made['id']}/files", params={"filter": "done"})
    assert answer.json()["error"]["param"] == "filter"


async def test_more_than_the_limit(alice: AsyncOpenAI):
    for _ in range(5):
        await alice.vector_stores.create()
    with pytest.raises(BadRequestError, match="'vector_stores'"):
        await alice.vector_stores.create()


async def test_without_the_extra(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("antiphon.app.vector_stores.find_spec", lambda _: None)
    answer = await http.post("/vector_stores", json={})
    assert (answer.status_code, "`files`" in answer.json()["error"]["message"]) == (400, True)


# By meaning


class Meaning(ScriptedEngine):
    """Its embeddings relate felines to cats, and canines to dogs. `away`: it is not ready this many times."""

    words = (("feline", "cat"), ("canine", "dog"))

    def __init__(self) -> None:
        super().__init__([{"output": "Hi"}])
        self.away = 0
        self.asked: list[EmbeddingRequest] = []

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        self.asked.append(request)
        if self.away:
            self.away -= 1
            raise EngineNotReadyError
        return Embeddings(tuple(map(self._vector, request.inputs)), 1)

    def _vector(self, text: Any) -> list[float]:
        found = [float(any(word in text.lower() for word in known)) for known in self.words]
        length = hypot(*found, 0.5)
        return [*(each / length for each in found), 0.5 / length]


@asynccontextmanager
async def meaning(engine: Meaning, limits: Limits = DEFAULTS, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with (
        running(
            engine, search_embeddings="scripted", limit=limits, api_key=("alice", "eve"), **options
        ) as server,
        sdk(server) as alice,
    ):
        yield alice


async def test_files_are_found_by_meaning_and_by_terms() -> None:
    engine = Meaning()
    async with meaning(engine) as alice:
        store = await alice.vector_stores.create(name="pets")
        await put(alice, store.id, "dogs", DOGS, kind="dog")
        await put(alice, store.id, "cats.md", CATS, kind="cat")
        assert {request.truncate for request in engine.asked} == {-1}
        assert await found(alice, store.id, "felines") == ["cats.md", "dogs"]
        assert await found(alice, store.id, "canines", max_num_results=1) == ["dogs"]
        both = (await alice.vector_stores.search(store.id, query="dogs that bark")).data
        assert (both[0].filename, both[0].score) == ("dogs", 1.0)  # the first of both rankings
        only: Any = {"type": "eq", "key": "kind", "value": "cat"}
        assert await found(alice, store.id, "canines", filters=only) == ["cats.md"]
        used = (await alice.vector_stores.retrieve(store.id)).usage_bytes
        assert used > len(CATS) + 2 * 3 * 4

        other = await alice.vector_stores.create(name="none")
        assert await found(alice, other.id, "felines") == []


async def test_no_more_chunks_are_compared_than_allowed() -> None:
    async with meaning(Meaning(), Limits(compared_chunks=1)) as alice:
        store = await alice.vector_stores.create(name="pets")
        await put(alice, store.id, "dogs", DOGS)
        await put(alice, store.id, "cats.md", CATS)
        with capture_logs() as logs:
            assert len(await found(alice, store.id, "felines")) == 1
        assert [line["limit"] for line in logs if line["log_level"] == "warning"] == ["compared_chunks"]


async def test_a_file_waits_for_the_model_that_embeds() -> None:
    engine = Meaning()
    engine.away = 1
    async with meaning(engine, lease_seconds=0.3) as alice:
        store = await alice.vector_stores.create(name="pets")
        await put(alice, store.id, "cats.md", CATS)
        assert await found(alice, store.id, "felines") == ["cats.md"]
