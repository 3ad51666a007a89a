"""Searching vector stores: rankings of chunks, joined, cut and made into results.

There is one ranker, by terms (BM25). Another, such as one by embeddings, has the protocol `Ranker`, and
is given to `FileSearcher` beside it: what several find is joined by reciprocal rank fusion.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import log
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.app.storage import Storage
from antiphon.core.file_search import FileQuery, FileResult
from antiphon.run.documents import terms_of
from antiphon.store.records import ChunkRecord, Postings
from antiphon.store.vector_stores import missing

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""`k1` and `b` of BM25."""
MOST_TERMS = 64
"""So many terms of a query are searched for, the first ones."""
RANK_SMOOTHING = 60
"""`k` of reciprocal rank fusion."""


class Ranked(Struct, frozen=True):
    """A chunk that was found, and how well it fits, from 0 to 1."""

    chunk: ChunkRecord
    score: float


class Where(Struct, frozen=True):
    """What is searched: vector stores of an owner; of their files, those with these keys (None: all)."""

    owner: str
    vector_store_ids: Sequence[str]
    keys: Collection[str] | None


class Ranker(Protocol):
    """One way to find chunks."""

    async def rank(self, where: Where, query: str) -> list[Ranked]:
        """The chunks that fit best, the best first: a few hundred at most. Raises StoreError."""
        ...


class TermRanker:
    """Finds chunks by the terms of a query: BM25 with the statistics of the vector stores that are searched.

    The score is the share of what a chunk would have with every term of the query, without end.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def rank(self, where: Where, query: str) -> list[Ranked]:
        """See `Ranker`."""
        terms = list(dict.fromkeys(terms_of(query)))[:MOST_TERMS]
        if not terms:
            return []
        vector_stores = self._storage.store.vector_stores
        found = await vector_stores.postings(where.owner, where.vector_store_ids, terms, where.keys)
        return await asyncio.to_thread(bm25, found)


def bm25(found: Postings) -> list[Ranked]:
    """The chunks that were found, the best first."""
    if not found.chunks:
        return []
    weights = {
        term: log(1 + (found.total - count + 0.5) / (count + 0.5)) for term, count in found.counts.items()
    }
    best = sum(weights.values()) * (SATURATION + 1)
    mean = found.length / found.total
    ranked = [Ranked(chunk, _weight(chunk.terms, weights, mean) / best) for chunk in found.chunks]
    return sorted(ranked, key=lambda it: (-it.score, it.chunk.id))


def _weight(terms: str, weights: Mapping[str, float], mean: float) -> float:
    counts = Counter(terms.split())
    length = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * counts.total() / mean)
    return sum(
        weight * counts[term] * (SATURATION + 1) / (counts[term] + length)
        for term, weight in weights.items()
        if counts[term]
    )


def fused(rankings: Sequence[Sequence[Ranked]]) -> list[Ranked]:
    """Several rankings as one, by reciprocal rank fusion; a single one as it is.

    The score is then the share of what the first of every ranking has.
    """
    if len(rankings) == 1:
        return list(rankings[0])
    scores: dict[int, float] = {}
    chunks: dict[int, ChunkRecord] = {}
    best = len(rankings) / (RANK_SMOOTHING + 1)
    for ranking in rankings:
        for rank, it in enumerate(ranking, 1):
            chunks[it.chunk.id] = it.chunk
            scores[it.chunk.id] = scores.get(it.chunk.id, 0.0) + 1 / (RANK_SMOOTHING + rank) / best
    return sorted(
        (Ranked(chunks[id_], scores[id_]) for id_ in chunks), key=lambda it: (-it.score, it.chunk.id)
    )


class FileSearcher:
    """Searches the vector stores of a server."""

    def __init__(self, storage: Storage, *more: Ranker) -> None:
        self._storage = storage
        self._rankers: tuple[Ranker, ...] = (TermRanker(storage), *more)

    async def check(self, owner: str, vector_store_ids: Sequence[str]) -> None:
        """Raise NotFoundError unless the owner has these vector stores."""
        for vector_store_id in vector_store_ids:
            if await self._storage.store.vector_stores.get(owner, vector_store_id) is None:
                raise missing(vector_store_id)

    async def search(self, owner: str, query: FileQuery) -> list[FileResult]:
        """What is found, the best first. Raises NotFoundError, StoreError."""
        await self.check(owner, query.vector_store_ids)
        vector_stores = self._storage.store.vector_stores
        await vector_stores.touch(owner, query.vector_store_ids, time.time())
        where = Where(owner, query.vector_store_ids, await self._admitted(owner, query))
        best: dict[int, Ranked] = {}
        for text in query.queries:
            rankings = [await ranker.rank(where, text) for ranker in self._rankers]
            for it in fused(rankings):
                if it.chunk.id not in best or best[it.chunk.id].score < it.score:
                    best[it.chunk.id] = it
        ranked = sorted(best.values(), key=lambda it: (-it.score, it.chunk.id))
        return [_result(it) for it in ranked if it.score >= query.threshold][: query.most]

    async def _admitted(self, owner: str, query: FileQuery) -> Collection[str] | None:
        if query.filter is None:
            return None
        attributes = await self._storage.store.vector_stores.attributes(owner, query.vector_store_ids)
        return [key for key, its in attributes.items() if query.filter.admits(msgspec.json.decode(its))]


def _result(it: Ranked) -> FileResult:
    chunk = it.chunk
    attributes: dict[str, Any] = msgspec.json.decode(chunk.attributes)
    return FileResult(chunk.file_id, chunk.filename, round(it.score, 4), attributes, chunk.text)
