"""Searches vector stores: chunks are ranked, the rankings are combined, and cut to results.

There is a ranker by terms (BM25), and one by meaning, if a model embeds the chunks. Their rankings are
combined by reciprocal rank fusion. Another ranker has the protocol `Ranker`, and is passed to
`FileSearcher`.

To add a way to search files: a class with the protocol `Ranker`, given to `FileSearcher`;
`tests/app/test_search.py`.
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nlargest
from math import log as logarithm
from operator import mul
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import Struct

from antiphon.app.storage import Storage
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.vectors import EmbeddingRequest
from antiphon.run.documents import terms_of
from antiphon.run.models import Models
from antiphon.store.chunk_rows import CANDIDATES
from antiphon.store.records import ChunkRecord, Postings
from antiphon.store.vector_stores import missing
from antiphon.toolkits.file_search.query import FileQuery, FileResult, Filter

log = structlog.get_logger(__name__)

EMBEDDED = 32
"""Texts that are embedded at a time."""
FILES_READ = 16
"""Files whose vectors are read at a time."""
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""`k1` and `b` of BM25."""
MOST_TERMS = 64
"""The number of terms of a query that are used, from the first on."""
RANK_SMOOTHING = 60
"""`k` of reciprocal rank fusion."""


class RankedChunk(Struct, frozen=True):
    """A chunk that was found, and how well it fits, from 0 to 1."""

    chunk: ChunkRecord
    score: float


class SearchTarget(Struct, frozen=True):
    """The files to search: vector stores of an owner, and in them the files with these keys.

    Without keys (None), all files are searched.
    """

    owner: str
    vector_store_ids: Sequence[str]
    keys: Collection[str] | None


class Ranker(Protocol):
    """A method of finding chunks."""

    async def rank(self, target: SearchTarget, query: str) -> list[RankedChunk]:
        """The chunks that fit best, the best first: a few hundred at most. Raises StoreError."""
        ...


class TermRanker:
    """Finds chunks by the terms of a query: BM25 with the statistics of the vector stores that are searched.

    The score is relative to that of a chunk with every term of the query, in unlimited number.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def rank(self, target: SearchTarget, query: str) -> list[RankedChunk]:
        # In a thread: the first query loads the stemmers of all languages.
        terms = list(dict.fromkeys(await asyncio.to_thread(terms_of, query)))[:MOST_TERMS]
        if not terms:
            return []
        vector_stores = self._storage.store.vector_stores
        postings = await vector_stores.postings(target.owner, target.vector_store_ids, terms, target.keys)
        return await asyncio.to_thread(bm25, postings)


def bm25(postings: Postings) -> list[RankedChunk]:
    """The chunks that were found, the best first."""
    if not postings.chunks:
        return []
    weights = {
        term: logarithm(1 + (postings.total - count + 0.5) / (count + 0.5))
        for term, count in postings.counts.items()
    }
    # BM25 has a bound for each query: every term without end. Shares of it can be compared, and cut off at.
    best = sum(weights.values()) * (SATURATION + 1)
    mean = postings.length / postings.total
    ranked = [RankedChunk(chunk, _weight(chunk.terms, weights, mean) / best) for chunk in postings.chunks]
    return sorted(ranked, key=lambda hit: (-hit.score, hit.chunk.id))


def _weight(terms: str, weights: Mapping[str, float], mean: float) -> float:
    counts = Counter(terms.split())
    length = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * counts.total() / mean)
    return sum(
        weight * counts[term] * (SATURATION + 1) / (counts[term] + length)
        for term, weight in weights.items()
        if counts[term]
    )


class ChunkEmbedder:
    """Makes vectors of chunks and queries, with the model of this name.

    `models` is set before its first use.
    """

    def __init__(self, model: str, models: Callable[[], Models]) -> None:
        self.model = model
        self._models = models

    async def vectors(self, texts: Sequence[str]) -> list[bytes]:
        """The vectors of texts, of length 1, in stored form. Raises RequestError, EngineError."""
        model = await self._models().model(self.model)
        able = "truncate" in model.card.capabilities.embedding
        encoded: list[bytes] = []
        for start in range(0, len(texts), EMBEDDED):
            batch = tuple(texts[start : start + EMBEDDED])
            embeddings = await model.embed(EmbeddingRequest(batch, truncate=-1 if able else None))
            encoded += [array("f", vector).tobytes() for vector in embeddings.vectors]
        return encoded


class MeaningRanker:
    """Finds chunks by the angle between their vectors and that of a query: the score is its cosine.

    At most `compared` chunks are compared with a query, from the first files on.
    """

    def __init__(self, storage: Storage, embedder: ChunkEmbedder, compared: int) -> None:
        self._storage = storage
        self._embedder = embedder
        self._compared = compared

    async def rank(self, target: SearchTarget, query: str) -> list[RankedChunk]:
        vector_stores = self._storage.store.vector_stores
        keys = target.keys
        if keys is None:
            keys = await vector_stores.attributes(target.owner, target.vector_store_ids)
        [query_vector] = await self._embedder.vectors([query])
        best: list[tuple[float, int]] = []
        remaining, files = self._compared, sorted(keys)
        for start in range(0, len(files), FILES_READ):
            batch = files[start : start + FILES_READ]
            vectors = await vector_stores.vectors(
                target.owner, target.vector_store_ids, batch, self._embedder.model
            )
            if len(vectors) > remaining:
                log.warning("too many chunks to compare", limit="compared_chunks", most=self._compared)
            best = await asyncio.to_thread(nearest, query_vector, vectors[:remaining], best)
            remaining -= len(vectors)
            if remaining <= 0:
                break
        chunks = {
            chunk.id: chunk for chunk in await vector_stores.chunks(target.owner, [id_ for _, id_ in best])
        }
        return [RankedChunk(chunks[id_], max(0.0, score)) for score, id_ in best if id_ in chunks]


def nearest(
    query: bytes, vectors: Sequence[tuple[int, bytes]], best: Sequence[tuple[float, int]] = ()
) -> list[tuple[float, int]]:
    """The cosine and the id of the vectors that are nearest to a query, the nearest first.

    `best` are those of earlier chunks. A vector of another length than the query's is of another model.
    """
    query_vector = array("f", query)
    scored = [
        (sum(map(mul, query_vector, memoryview(vector).cast("f"))), id_)
        for id_, vector in vectors
        if len(vector) == len(query)
    ]
    return nlargest(CANDIDATES, [*best, *scored])


def fused(rankings: Sequence[Sequence[RankedChunk]]) -> list[RankedChunk]:
    """Several rankings as one, by reciprocal rank fusion; a single one unchanged.

    The score is relative to that of a chunk that is first in every ranking.
    """
    if len(rankings) == 1:
        return list(rankings[0])
    scores: dict[int, float] = {}
    chunks: dict[int, ChunkRecord] = {}
    best = len(rankings) / (RANK_SMOOTHING + 1)
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            chunks[hit.chunk.id] = hit.chunk
            scores[hit.chunk.id] = scores.get(hit.chunk.id, 0.0) + 1 / (RANK_SMOOTHING + rank) / best
    return sorted(
        (RankedChunk(chunks[id_], scores[id_]) for id_ in chunks),
        key=lambda hit: (-hit.score, hit.chunk.id),
    )


class FileSearcher:
    """Searches the vector stores of a server."""

    def __init__(self, storage: Storage, *rankers: Ranker, limits: Limits = DEFAULTS) -> None:
        self._storage = storage
        self._limits = limits
        self._rankers: tuple[Ranker, ...] = (TermRanker(storage), *rankers)

    async def check(self, owner: str, vector_store_ids: Sequence[str]) -> None:
        """Raise NotFoundError unless the owner has these vector stores."""
        for vector_store_id in vector_store_ids:
            if await self._storage.store.vector_stores.get(owner, vector_store_id) is None:
                raise missing(vector_store_id)

    async def search(self, owner: str, query: FileQuery) -> list[FileResult]:
        """The results, the best first. Raises RequestError, NotFoundError, StoreError."""
        for text in query.queries:
            self._limits.check("query_characters", len(text), "query")
        await self.check(owner, query.vector_store_ids)
        vector_stores = self._storage.store.vector_stores
        await vector_stores.touch(owner, query.vector_store_ids, time.time())
        target = SearchTarget(owner, query.vector_store_ids, await self._admitted(owner, query))
        best: dict[int, RankedChunk] = {}
        for text in query.queries:
            rankings = [await ranker.rank(target, text) for ranker in self._rankers]
            for hit in fused(rankings):
                if hit.chunk.id not in best or best[hit.chunk.id].score < hit.score:
                    best[hit.chunk.id] = hit
        ranked = sorted(best.values(), key=lambda hit: (-hit.score, hit.chunk.id))
        return [_result(hit) for hit in ranked if hit.score >= query.threshold][: query.limit]

    async def _admitted(self, owner: str, query: FileQuery) -> Collection[str] | None:
        if query.filter is None:
            return None
        attributes = await self._storage.store.vector_stores.attributes(owner, query.vector_store_ids)
        # In a thread: there may be thousands of files, and hundreds of filters for each.
        return await asyncio.to_thread(_admitted, query.filter, attributes)


def _admitted(condition: Filter, attributes: Mapping[str, bytes]) -> list[str]:
    return [key for key, encoded in attributes.items() if condition.admits(msgspec.json.decode(encoded))]


def _result(hit: RankedChunk) -> FileResult:
    chunk = hit.chunk
    attributes: dict[str, Any] = msgspec.json.decode(chunk.attributes)
    return FileResult(chunk.file_id, chunk.filename, round(hit.score, 4), attributes, chunk.text)


def searcher(storage: Storage, embedder: ChunkEmbedder | None, limits: Limits) -> FileSearcher:
    """A searcher by terms and, with an embedder, by meaning."""
    if embedder is None:
        return FileSearcher(storage, limits=limits)
    return FileSearcher(storage, MeaningRanker(storage, embedder, limits.compared_chunks), limits=limits)
