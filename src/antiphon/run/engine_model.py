"""A model over one engine: what all kinds of them share, and all there is to one that gives no answers.

Those compute vectors and scores of texts, or transcribe audio. A model that ranks returns scores itself. With
one that only embeds, the score is the cosine of the angle between two vectors.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from hashlib import blake2b
from operator import mul
from types import MappingProxyType

from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import RequestError, UnsupportedModelError, naming
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import Function, Turn
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.engine import (
    DecisionServer,
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
from antiphon.run.model import ModelTraits, NextTokens, PlainAnswer, Prepared, PromptSize
from antiphon.run.server_decisions import request_to_server
from antiphon.tools.tool import ServerTool

SIZES = 65_536
"""The number of texts whose size is remembered: about 8 MB."""
PAUSE = 64
"""The number of pairs of vectors that are compared, or of texts that are measured, before other work."""


class EngineModel:
    """A model that embeds, ranks or transcribes, as far as its engine can. Those that answer are derived.

    `tools` are the server's, by type; `stopping` is set when the server stops waiting for them. `limits`
    bound the size of a turn.
    """

    native_tools: Mapping[str, tuple[Function, ...]] = MappingProxyType({})
    read_messages: MessageReader | None = None
    traits = ModelTraits()

    def __init__(
        self,
        engine: Engine,
        tools: Mapping[str, ServerTool] = MappingProxyType({}),
        limits: Limits = DEFAULTS,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.pool = BoundedPool(limits)
        self.tools = tools
        self.stopping = asyncio.Event()
        self.running: set[GenerationRun] = set()
        self._sizes: dict[bytes, int] = {}  # of texts, by their hashes

    @property
    def card(self) -> ModelCard:
        """The engine's model."""
        return self.engine.card

    @property
    def load(self) -> Load:
        """The engine's load."""
        return self.engine.load

    @staticmethod
    def in_use() -> AbstractAsyncContextManager[None]:
        """It is loaded already."""
        return nullcontext()

    async def prepare(
        self, turn: Turn, ids: tuple[int, ...] | None = None, choices: int | None = None
    ) -> Prepared:
        """Raises RequestError, always."""
        raise self._no_answers()

    async def count(self, turn: Turn) -> PromptSize:
        """The number of tokens of a text. Raises RequestError for a conversation."""
        return PromptSize(len((await self.compose(turn)).ids))

    async def tokens_in(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text. It is remembered: conversations come again, and longer."""
        sizes = []
        for text in texts:
            key = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
            size = self._sizes.get(key)
            if size is None:
                if len(self._sizes) % PAUSE == 0:
                    await asyncio.sleep(0)
                size = self._sizes[key] = len(await self.engine.tokenize([text]))
                if len(self._sizes) > SIZES:
                    del self._sizes[next(iter(self._sizes))]
            sizes.append(size)
        return sizes

    async def compose(self, turn: Turn) -> Prompt:
        """The tokens of a text. Raises RequestError for a conversation."""
        if not isinstance(turn.prompt, str):
            raise self._no_answers()
        return Prompt(turn.prompt, tuple(await self.engine.tokenize([turn.prompt])))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these tokens of a prompt."""
        return await self.engine.token_texts(ids)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens."""
        return await self.engine.detokenize(ids)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The vectors of texts. Raises RequestError for unsupported parameters, EngineError."""
        engine, able = self.engine, self.card.capabilities
        if Task.EMBED not in able.tasks or not isinstance(engine, Embedder):
            raise self._unsupported("does not compute embeddings", "Name a model that does")
        demands = {
            "ids": ("input", not all(isinstance(text, str) for text in request.inputs)),
            "dimensions": ("dimensions", request.dimensions is not None),
            "truncate": ("truncate_prompt_tokens", request.truncate is not None),
        }
        for name, (param, requested) in demands.items():
            if requested and name not in able.embedding:
                remedy = "Send texts." if name == "ids" else "Leave it out."
                message = (
                    f"The engine of the model '{self.card.name}' does not support this '{param}'. {remedy}"
                )
                raise RequestError(message, param=param)
        return await engine.embed(request)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """How well each document answers its query. Raises RequestError, EngineError."""
        engine, tasks = self.engine, self.card.capabilities.tasks
        if Task.RANK in tasks and isinstance(engine, Reranker):
            return await engine.score(pairs)
        if Task.EMBED not in tasks:
            raise self._unsupported("does not rank", "Name a model that ranks or computes embeddings")
        texts = dict.fromkeys(text for pair in pairs for text in pair)
        places = {text: place for place, text in enumerate(texts)}
        embeddings = await self.embed(EmbeddingRequest((*texts,)))
        vectors, scores = embeddings.vectors, []
        for place, (query, document) in enumerate(pairs):
            scores.append(sum(map(mul, vectors[places[query]], vectors[places[document]])))
            if place % PAUSE == 0:
                await asyncio.sleep(0)
        return Scores((*scores,), embeddings.tokens)

    async def decide(self, decision: Decision) -> Verdicts:
        """The answers of the model's server. Raises UnsupportedModelError if it does not answer questions."""
        engine, able = self.engine, self.card.capabilities
        if able.answers_questions and isinstance(engine, DecisionServer):
            with naming(decision.parameters):
                request = request_to_server(decision, self.limits, self.card.context)
                return await engine.decide(request)
        message = (
            f"The model '{self.card.name}' does not generate text, so it cannot decide. Name another model."
        )
        raise UnsupportedModelError(message, param="model")

    async def next_tokens(self, turn: Turn, after: Sequence[str]) -> NextTokens:
        """Raises RequestError, always."""
        raise self._no_answers()

    async def plain_answer(self, turn: Turn, max_tokens: int) -> PlainAnswer:
        """Raises RequestError, always."""
        raise self._no_answers()

    def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        """A transcription, as the body of an answer. Raises RequestError, EngineError."""
        engine = self.engine
        if Task.TRANSCRIBE not in self.card.capabilities.tasks or not isinstance(engine, Transcriber):
            raise self._unsupported(
                "does not transcribe", "Name a model that does, or send the file in a conversation"
            )
        return engine.transcribe(audio)

    def _no_answers(self) -> RequestError:
        remedy = "Use /v1/embeddings, /v1/rerank or /v1/audio/transcriptions, or name another model"
        return self._unsupported("does not generate text", remedy)

    def _unsupported(self, what: str, remedy: str) -> RequestError:
        message = f"The model '{self.card.name}' {what}. {remedy}."
        return RequestError(message, param="model", code="unsupported_model")
