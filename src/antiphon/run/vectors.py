"""Vectors and scores of texts, transcriptions, and models that compute nothing else.

A model that ranks returns scores itself. With one that only embeds, the score is the cosine of the angle
between two vectors.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from operator import mul
from types import MappingProxyType
from weakref import WeakSet

from antiphon.core.errors import RequestError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import Function, Turn
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.engine import (
    Embedder,
    Engine,
    Load,
    ModelCard,
    Prompt,
    Reranker,
    Task,
    Transcriber,
    TranscriptionRequest,
)
from antiphon.render.renderer import MessageReader
from antiphon.run.bounded import BoundedPool
from antiphon.run.generation import GenerationRun
from antiphon.run.model import Prepared, PromptSize
from antiphon.tools.tool import ServerTool

PAUSE = 64
"""The number of pairs of vectors that are compared before the event loop may do other work."""


async def embed(engine: Engine, request: EmbeddingRequest) -> Embeddings:
    """The vectors that the engine returns. Raises RequestError for unsupported parameters, EngineError."""
    able = engine.card.capabilities
    if Task.EMBED not in able.tasks or not isinstance(engine, Embedder):
        raise _unsupported_task_error(engine.card, "does not make embeddings", "Name one that does")
    wanted = {
        "ids": ("input", not all(isinstance(each, str) for each in request.inputs)),
        "dimensions": ("dimensions", request.dimensions is not None),
        "truncate": ("truncate_prompt_tokens", request.truncate is not None),
    }
    for name, (param, given) in wanted.items():
        if given and name not in able.embedding:
            remedy = "Send texts." if name == "ids" else "Leave it out."
            message = (
                f"The engine of the model '{engine.card.name}' does not support this '{param}'. {remedy}"
            )
            raise RequestError(message, param=param)
    return await engine.embed(request)


async def score(engine: Engine, pairs: Sequence[tuple[str, str]]) -> Scores:
    """How well each document answers its query. Raises RequestError, EngineError."""
    tasks = engine.card.capabilities.tasks
    if Task.RANK in tasks and isinstance(engine, Reranker):
        return await engine.score(pairs)
    if Task.EMBED not in tasks:
        raise _unsupported_task_error(engine.card, "does not rank", "Name one that ranks, or embeds")
    texts = {text: place for place, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
    found = await embed(engine, EmbeddingRequest((*texts,)))
    scores = []
    for place, (query, document) in enumerate(pairs):
        scores.append(sum(map(mul, found.vectors[texts[query]], found.vectors[texts[document]])))
        if place % PAUSE == 0:
            await asyncio.sleep(0)
    return Scores((*scores,), found.tokens)


def transcribe(engine: Engine, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
    """A transcription, as the body of an answer. Raises RequestError, EngineError."""
    if Task.TRANSCRIBE not in engine.card.capabilities.tasks or not isinstance(engine, Transcriber):
        raise _unsupported_task_error(
            engine.card, "does not transcribe", "Name one that does, or send the file in a conversation"
        )
    return engine.transcribe(audio)


def _unsupported_task_error(card: ModelCard, what: str, remedy: str) -> RequestError:
    return RequestError(f"The model '{card.name}' {what}. {remedy}.", param="model", code="unsupported_model")


class VectorModel:
    """A model that embeds, ranks or transcribes audio, and cannot generate. See `Model`."""

    def __init__(self, engine: Engine, limits: Limits = DEFAULTS) -> None:
        self.engine = engine
        self.limits = limits
        self.pool = BoundedPool(limits)
        self.stopping = asyncio.Event()
        self.writing: WeakSet[GenerationRun] = WeakSet()
        self.tools: Mapping[str, ServerTool] = MappingProxyType({})
        self.native_tools: Mapping[str, tuple[Function, ...]] = MappingProxyType({})
        self.read_messages: MessageReader | None = None

    @property
    def card(self) -> ModelCard:
        """The engine's model."""
        return self.engine.card

    @property
    def load(self) -> Load:
        """See `Model`."""
        return self.engine.load

    @staticmethod
    def in_use() -> AbstractAsyncContextManager[None]:
        """See `Model`: it is loaded already."""
        return nullcontext()

    async def prepare(
        self, turn: Turn, ids: tuple[int, ...] | None = None, choices: int | None = None
    ) -> Prepared:
        """See `Model`. Raises RequestError, always."""
        raise self._no_answers()

    async def count(self, turn: Turn) -> PromptSize:
        """See `Model`."""
        return PromptSize(len((await self.compose(turn)).ids))

    async def compose(self, turn: Turn) -> Prompt:
        """See `Model`: of a text. Raises RequestError for a conversation."""
        if not isinstance(turn.prompt, str):
            raise self._no_answers()
        return Prompt(turn.prompt, (*await self.engine.tokenize([turn.prompt]),))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """See `Model`."""
        return await self.engine.token_texts(ids)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """See `Model`."""
        return await self.engine.detokenize(ids)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """See `Model`."""
        return await embed(self.engine, request)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """See `Model`."""
        return await score(self.engine, pairs)

    def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        """See `Model`."""
        return transcribe(self.engine, audio)

    def _no_answers(self) -> RequestError:
        return _unsupported_task_error(
            self.card,
            "gives no answers",
            "Use /v1/embeddings, /v1/rerank or /v1/audio/transcriptions, or name another",
        )
