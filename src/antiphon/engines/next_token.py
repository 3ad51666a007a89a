"""Scores the next token after prompts that begin alike, on every engine.

An engine with the method of `NextTokenScorer` does it itself. Of any other, one token is generated after each
prompt, and the alternatives to it are read. If one of the tokens that are to be scored is not among them,
more are requested, up to what the engine returns. The beginning is requested first, unless it is short, so
that the engine has it in its cache for all that follow.

Engines that take conversations are asked for the first token of an answer, by `score_answers`. They and
others without `token_ids` name tokens by their texts only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from msgspec.structs import replace

from antiphon.core.chunks import Candidate, ChatChunk, Chunk, PieceKind, Token
from antiphon.core.errors import AntiphonError, RequestError
from antiphon.engines.engine import (
    Capabilities,
    Engine,
    GenerationRequest,
    NextToken,
    NextTokenRequest,
    NextTokenScorer,
    Prompt,
    Range,
)

SHORT_BEGINNING = 128
"""A beginning with fewer tokens is not requested by itself: it is computed with each of the ends."""

AT_ONCE = 16
"""Prompts of one request that are scored at the same time."""

COUNTS = (20, 320, 5120)
"""The numbers of alternatives that are requested, one after the other. All servers return the first one."""

LIKELIEST = 20
"""The likeliest candidates that are kept, besides the tokens that were to be scored."""

Result = TypeVar("Result")

ReadPrompt = Callable[[Prompt, Sequence[int]], Awaitable[NextToken]]
"""Scores these tokens after a prompt."""


async def score_next(engine: Engine, request: NextTokenRequest) -> tuple[NextToken, ...]:
    """The next token after each prompt, in the order of the ends. Raises RequestError, EngineError."""
    if isinstance(engine, NextTokenScorer):
        return await engine.score_next(request)
    return await generate_next(engine, request)


async def generate_next(engine: Engine, request: NextTokenRequest) -> tuple[NextToken, ...]:
    """The same, by generating tokens."""

    async def read(prompt: Prompt, tokens: Sequence[int]) -> NextToken:
        return await _read(engine, GenerationRequest(prompt, 1, request.sampling), tokens)

    return await read_each(request, read)


async def score_answers(engine: Engine, requests: Sequence[GenerationRequest]) -> tuple[NextToken, ...]:
    """The first token of the answer to each of these requests, which have conversations.

    It is that of the visible text: there is none if the model reasons first. Of the sampling only `lora`,
    `cache_salt` and `priority` may be set. Raises RequestError, EngineError.
    """
    return (*await _all_of(partial(_read, engine, request, ()) for request in requests),)


async def written_text(engine: Engine, request: GenerationRequest) -> str:
    """The likeliest answer to this request, as text. Raises RequestError, EngineError."""
    sampling = replace(request.sampling, temperature=_greedy(engine.card.capabilities))
    chunks = await _generated(engine, replace(request, sampling=sampling))
    return "".join(map(_text_of, chunks))


async def read_each(
    request: NextTokenRequest, read: ReadPrompt, *, beginning_first: bool = True
) -> tuple[NextToken, ...]:
    """The next token after each prompt, by one call of `read` for each, some of them at the same time.

    With `beginning_first`, the beginning is read before, by itself, unless it is short. If a call fails, or
    this one is cancelled, all others are.
    """
    beginning, size = request.beginning, len(request.beginning.ids)
    first: list[NextToken] = []
    if beginning_first and size >= SHORT_BEGINNING and len(request.ends) > 1:
        first = [await read(beginning, ())]
    prompts = (beginning.followed_by(end) for end in request.ends)
    pairs = zip(prompts, request.tokens, strict=True)
    results = await _all_of(partial(read, prompt, tokens) for prompt, tokens in pairs)
    cached = min((result.cached_tokens for result in first or results), default=0)
    return tuple(replace(result, cached_tokens=min(cached, size)) for result in results)


async def _all_of(reads: Iterable[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """The results, in their order."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(read: Callable[[], Awaitable[Result]]) -> Result:
        async with places:
            return await read()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(read)) for read in reads]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def chosen(candidates: Iterable[Candidate], tokens: Sequence[int], cached_tokens: int = 0) -> NextToken:
    """Of the candidates the likeliest, and all that are among the tokens to be scored; each once."""
    distinct: dict[Any, Candidate] = {}
    for one in candidates:
        distinct.setdefault((one.text, one.raw) if one.id < 0 else one.id, one)
    ordered = sorted(distinct.values(), key=lambda one: -one.logprob)
    kept = (*ordered[:LIKELIEST], *(one for one in ordered[LIKELIEST:] if one.id in tokens))
    return NextToken(kept, {*tokens} <= {one.id for one in kept}, cached_tokens)


# By generating


async def _read(engine: Engine, request: GenerationRequest, tokens: Sequence[int]) -> NextToken:
    """The first token of a generation; `tokens` are to be scored."""
    capabilities = engine.card.capabilities
    if "logprobs" not in capabilities.sampling:
        message = "The engine of this model returns no log probabilities of tokens. Name another model."
        raise RequestError(message, param="model")
    result: NextToken | None = None
    for count in _counts(capabilities, tokens):
        temperature = _greedy(capabilities)
        sampling = replace(request.sampling, logprobs=count, temperature=temperature, max_tokens=1)
        try:
            result = await _first_token(engine, replace(request, max_tokens=1, sampling=sampling), tokens)
        except RequestError:
            if result is None:
                raise
            return result  # the server has a limit of its own
        if result.complete:
            break
    assert result is not None
    return result


def _counts(capabilities: Capabilities, tokens: Sequence[int]) -> Iterable[int]:
    """The numbers of alternatives to request, one after the other until all tokens are there."""
    limit = capabilities.alternatives
    if not tokens or not capabilities.token_ids:  # nothing can be missing, or be seen to be
        return (min(COUNTS[0], limit),)
    return dict.fromkeys(min(count, limit) for count in COUNTS)


def _greedy(capabilities: Capabilities) -> float | None:
    """The temperature of an engine that has one."""
    values = capabilities.ranges.get("temperature", Range())
    return 0.0 if "temperature" in capabilities.sampling and values.admits(0) else None


async def _first_token(engine: Engine, request: GenerationRequest, tokens: Sequence[int]) -> NextToken:
    chunks = await _generated(engine, request)
    cached = max((chunk.cached_tokens for chunk in chunks), default=0)
    first = next(chain.from_iterable(map(_tokens_of, chunks)), None)
    result = chosen(() if first is None else _candidates(first), tokens, cached)
    if engine.card.capabilities.token_ids or not tokens:
        return result
    return replace(result, complete=False)


def _candidates(token: Token) -> Iterator[Candidate]:
    """The alternatives to a token, and itself."""
    if token.logprob is not None and token.text:
        yield Candidate(token.id, token.text, token.logprob, token.raw)
    yield from token.top


def _tokens_of(chunk: Chunk) -> Iterable[Token]:
    """The tokens of a chunk; of one that has parts, those of its visible text."""
    if not isinstance(chunk, ChatChunk):
        return chunk.tokens
    texts = (piece.tokens for piece in chunk.pieces if piece.kind is PieceKind.TEXT)
    return chain.from_iterable(texts)


def _text_of(chunk: Chunk) -> str:
    """The text of a chunk; of one that has parts, the visible one."""
    if not isinstance(chunk, ChatChunk):
        return chunk.text
    return "".join(piece.text for piece in chunk.pieces if piece.kind is PieceKind.TEXT)


class _Collecting:
    """A receiver that keeps all chunks until the last."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def push(self, chunks: list[Chunk]) -> None:
        self.chunks += chunks
        if chunks[-1].finish is not None and not self.over.done():
            self.over.set_result(None)

    def fail(self, error: AntiphonError) -> None:
        if not self.over.done():
            self.over.set_exception(error)


async def _generated(engine: Engine, request: GenerationRequest) -> Sequence[Chunk]:
    """The chunks of a generation, which is cancelled if this is. Raises RequestError, EngineError."""
    receiver = _Collecting()
    work = engine.generate(request, receiver)
    try:
        await receiver.over
    finally:
        work.cancel()
    return receiver.chunks
