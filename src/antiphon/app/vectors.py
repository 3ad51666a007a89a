"""Embeddings, rankings, scores and transcriptions, without HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import chain
from time import time
from typing import TypeVar

from antiphon.apis.vectors import (
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
    accept_inputs,
    accept_ranking,
    accept_scores,
    embeddings_body,
    ranking_body,
    scores_body,
    tokens_in,
)
from antiphon.app.app import App
from antiphon.app.ids import random_id
from antiphon.core.errors import naming
from antiphon.core.observation import observed
from antiphon.core.vectors import Embeddings, Scores
from antiphon.engines.engine import TranscriptionRequest

T = TypeVar("T", Embeddings, Scores)

PAUSE = 16
"""The number of vectors that are written before the event loop may do other work."""


async def embeddings(app: App, request: EmbeddingsRequest) -> bytes:
    """The body with the vectors of texts. Raises RequestError, EngineError."""
    result = await embedded(app, request)
    pieces: list[bytes] = []
    for piece in embeddings_body(request.model, result, request.encoding_format):
        pieces.append(piece)
        if len(pieces) % PAUSE == 0:
            await asyncio.sleep(0)
    return b"".join(pieces)


async def embedded(app: App, request: EmbeddingsRequest) -> Embeddings:
    """The vectors of texts. Raises RequestError, EngineError."""
    embedding_request = accept_inputs(request, app.limits)
    model = await app.models.model(request.model)
    return await _charged_to_account(
        tokens_in(embedding_request.inputs), "input", lambda: model.embed(embedding_request)
    )


async def ranking(app: App, request: RerankRequest) -> bytes:
    """The body with documents by how well they answer a query. Raises RequestError, EngineError."""
    result = await _scores(app, request.model, accept_ranking(request, app.limits), "documents")
    return ranking_body(random_id("rerank-", 24), request, result)


async def scores(app: App, request: ScoreRequest) -> bytes:
    """The body with the scores of pairs of texts. Raises RequestError, EngineError."""
    result = await _scores(app, request.model, accept_scores(request, app.limits), "text_2")
    return scores_body(random_id("score-", 24), int(time()), request.model, result)


async def transcribed(app: App, name: str, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
    """The body of a transcription, in pieces. Raises RequestError, EngineError."""
    model = await app.models.model(name)
    account = observed().account
    await account.secure(place=True)
    with account:
        async with aclosing(model.transcribe(audio)) as pieces:
            async for piece in pieces:
                yield piece


async def _scores(app: App, name: str, pairs: Sequence[tuple[str, str]], param: str) -> Scores:
    model = await app.models.model(name)
    return await _charged_to_account(tokens_in(chain.from_iterable(pairs)), param, lambda: model.score(pairs))


async def _charged_to_account(about: int, param: str, work: Callable[[], Awaitable[T]]) -> T:
    """The result of the work, whose tokens are counted for the key. Raises RateLimitError."""
    names = {"max_tokens": param, "documents": param, "input": param}
    with naming(names):
        async with observed().account.charge(about) as charge:
            result = await work()
            charge.tokens = result.tokens
    observed().read += result.tokens
    return result
