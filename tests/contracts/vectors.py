"""What every engine must do that embeds and ranks: `Embedder` and `Reranker` of `antiphon.engines.engine`.

A test module inherits `VectorContract` and gives it the fixture `engine`, started.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.core.vectors import EmbeddingRequest, Embeddings
from antiphon.engines.engine import Task

CAT, KITTEN = "The cat sleeps on the sofa.", "A cat is asleep on the sofa."
TRADE = "Parliament votes about new tariffs today."
MANY = tuple(f"Text number {number} of many." for number in range(40))


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def near(one: Sequence[float], other: Sequence[float]) -> bool:
    """In a batch with other texts, rounding may differ."""
    return cosine(one, other) > 0.9999


class VectorContract:
    """The tests. `ranks`: the model does more than to embed; `many` texts are a lot for it."""

    ranks = False
    many = len(MANY)

    async def embedded(self, engine: Any, *inputs: Any, **options: Any) -> Embeddings:
        found: Embeddings = await engine.embed(EmbeddingRequest(inputs, **options))
        assert len(found.vectors) == len(inputs)
        assert len({*map(len, found.vectors)}) == 1
        for vector in found.vectors:
            assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-4)
        return found

    async def test_vectors_of_like_texts_are_near(self, engine: Any) -> None:
        assert Task.EMBED in engine.card.capabilities.tasks
        cat, kitten, trade = (await self.embedded(engine, CAT, KITTEN, TRADE)).vectors
        assert cosine(cat, kitten) > cosine(cat, trade) + 0.05

    async def test_a_vector_depends_on_its_input_alone(self, engine: Any) -> None:
        many = await self.embedded(engine, *MANY[: self.many])
        for place in (0, self.many // 2, self.many - 1):
            [alone] = (await self.embedded(engine, MANY[place])).vectors
            assert near(alone, many.vectors[place])
        assert not near(many.vectors[0], (await self.embedded(engine, TRADE)).vectors[0])

    async def test_tokens_are_counted(self, engine: Any) -> None:
        one, two = [await self.embedded(engine, *texts) for texts in ((CAT,), (CAT, KITTEN))]
        assert two.tokens > one.tokens >= len(await engine.tokenize([CAT]))

    async def test_ids_stand_for_their_text(self, engine: Any) -> None:
        ids = tuple(await engine.tokenize([CAT]))
        text, tokens = (await self.embedded(engine, CAT, ids)).vectors
        assert near(text, tokens)

    async def test_a_long_input_is_cut_where_that_is_wanted(self, engine: Any) -> None:
        ids = tuple(await engine.tokenize([CAT]))
        first, last = [
            (await self.embedded(engine, CAT, truncate=4, keep_end=keep_end)).vectors[0]
            for keep_end in (False, True)
        ]
        head, tail = (await self.embedded(engine, ids[:4], ids[-4:])).vectors
        assert near(first, head)
        assert near(last, tail)
        assert not near(first, last)

    async def test_an_input_longer_than_the_context_is_refused_or_cut(self, engine: Any) -> None:
        text = " cat" * (engine.card.context + 10)
        with pytest.raises(RequestError):
            await engine.embed(EmbeddingRequest((text,)))
        found = await self.embedded(engine, text, truncate=-1)
        assert found.tokens <= engine.card.context

    async def test_many_requests_share_the_engine(self, engine: Any) -> None:
        requests = [EmbeddingRequest((text,)) for text in MANY[: self.many]]
        found = await asyncio.gather(*map(engine.embed, requests))
        together = await self.embedded(engine, *MANY[: self.many])
        for each, vector in zip(found, together.vectors, strict=True):
            assert near(each.vectors[0], vector)
        assert engine.load.idle

    async def test_documents_are_scored(self, engine: Any) -> None:
        if not self.ranks:
            pytest.skip("the model only embeds")
        pairs = [("Where is the cat?", CAT), ("Where is the cat?", TRADE), ("tariffs today", TRADE)]
        found = await engine.score(pairs)
        assert len(found.scores) == 3
        assert found.scores[0] > found.scores[1]
        assert found.scores[2] > found.scores[1]
        assert found.tokens > 0
        assert (await engine.score(pairs[::-1])).scores == pytest.approx(found.scores[::-1])
