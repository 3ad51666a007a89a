"""Embeddings, rankings and transcriptions of servers: the requests and answers of each kind of server.

Nearly all have OpenAI's `/v1/embeddings`; those that rank have Jina's `/v1/rerank`. Many inputs are split
into several requests, each of which waits for a slot like a generation: so a large one does not delay
others, and no answer is so large that decoding it would block the event loop.

To add a server or an engine that embeds, ranks or transcribes: the protocols `Embedder`, `Reranker` and
`Transcriber` of `engines/engine.py`, with `tasks` and `embedding` in its `Capabilities`; a server whose API
differs from OpenAI's is an entry of `VECTOR_APIS`. It inherits the suite in `tests/contracts/vectors.py`; the
table in `docs/embeddings.md`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import groupby
from secrets import token_hex
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.core.errors import RequestError
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.engine import ModelCard, Task, TranscriptionRequest
from antiphon.engines.upstreams.kind import Post, unexpected

MAX_PARALLEL = 8
"""Simultaneous requests to the server, for one request of a client."""

T = TypeVar("T")
U = TypeVar("U")

Input = str | tuple[int, ...]


class VectorApi(Struct, frozen=True):
    """The API of a kind of server for vectors.

    A request has at most `batch` inputs, so that one slot is enough for it. `fields` are the parameters that
    it takes, as in `Capabilities.embedding`. With `native`, requests have Ollama's form.
    """

    tasks: frozenset[Task] = frozenset(Task)
    batch: int = 32
    fields: frozenset[str] = frozenset({"ids", "dimensions"})
    native: bool = False


_OPENAI = VectorApi()
_GENERATES = frozenset({Task.GENERATE})

VECTOR_APIS: Mapping[str, VectorApi] = MappingProxyType(
    {
        # A slot reads one input at a time. Inputs that are too long are cut here, by their tokens.
        "llama-server": VectorApi(
            frozenset(Task) - {Task.TRANSCRIBE}, batch=1, fields=frozenset({"ids", "truncate"})
        ),
        "vllm": VectorApi(fields=frozenset({"ids", "dimensions", "truncate"})),
        "ollama": VectorApi(
            _GENERATES | {Task.EMBED}, fields=frozenset({"dimensions", "truncate"}), native=True
        ),
        "anthropic": VectorApi(_GENERATES, fields=frozenset()),
    }
)
"""The kinds of servers that differ from the common API."""


def vector_api(kind: str) -> VectorApi:
    """The API of servers of this kind."""
    return VECTOR_APIS.get(kind, _OPENAI)


async def embed(post: Post, api: VectorApi, card: ModelCard, request: EmbeddingRequest) -> Embeddings:
    """The vectors that the server makes. Raises AntiphonError."""
    cut = _cutter(post, card, request) if api.batch == 1 and request.truncate is not None else None

    async def ask(batch: Sequence[Input]) -> Embeddings:
        if cut is not None:
            batch = [await cut(batch[0])]
        if api.native:
            return _native(await post("/api/embed", _native_body(card, request, batch)), len(batch))
        body: dict[str, Any] = {"model": card.known_as[0], "input": batch, "encoding_format": "float"}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        if request.truncate is not None and cut is None:
            body["truncate_prompt_tokens"] = request.truncate
            if request.keep_end:
                body["truncation_side"] = "left"
        return _embeddings(await post("/v1/embeddings", body), len(batch))

    parts = await _sequentially(list(_batches(request.inputs, api.batch)), ask, "input")
    return Embeddings(
        tuple(vector for part in parts for vector in part.vectors), sum(part.tokens for part in parts)
    )


def _embeddings(answer: Any, count: int) -> Embeddings:
    by_index: list[Sequence[float] | None] = [None] * count
    try:
        for place, entry in enumerate(answer["data"]):
            by_index[entry.get("index", place)] = [*map(float, entry["embedding"])]
        tokens = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise unexpected() from error
    vectors = tuple(vector for vector in by_index if vector)
    if len(vectors) < count:
        raise unexpected()
    return Embeddings(vectors, tokens)


def _native_body(card: ModelCard, request: EmbeddingRequest, batch: Sequence[Input]) -> dict[str, Any]:
    """Ollama cuts inputs that are too long without a report, unless `truncate` is false."""
    if request.truncate not in (None, -1) or request.keep_end:
        message = "The server of this model cuts texts at its own length, at their ends. Use -1."
        raise RequestError(message, param="truncate_prompt_tokens")
    body: dict[str, Any] = {"model": card.known_as[0], "input": batch, "truncate": request.truncate == -1}
    return body if request.dimensions is None else body | {"dimensions": request.dimensions}


def _native(answer: Any, count: int) -> Embeddings:
    try:
        vectors = tuple([*map(float, vector)] for vector in answer["embeddings"])
        tokens = int(answer.get("prompt_eval_count") or 0)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unexpected() from error
    if len(vectors) != count:
        raise unexpected()
    return Embeddings(vectors, tokens)


async def score(post: Post, api: VectorApi, card: ModelCard, pairs: Sequence[tuple[str, str]]) -> Scores:
    """The server's scores. Raises AntiphonError."""
    requests = [
        (query, [document for _, document in batch])
        for query, group in groupby(pairs, lambda pair: pair[0])
        for batch in _batches([*group], api.batch)
    ]

    async def ask(batch: tuple[str, list[str]]) -> Scores:
        query, documents = batch
        body = {
            "model": card.known_as[0],
            "query": query,
            "documents": documents,
            "top_n": len(documents),
        }
        return _scores(await post("/v1/rerank", body), len(documents))

    parts = await _sequentially(requests, ask, "documents")
    return Scores(tuple(value for part in parts for value in part.scores), sum(part.tokens for part in parts))


def _scores(answer: Any, count: int) -> Scores:
    """The scores by the places of the documents. SGLang returns a list, with other names."""
    by_index: list[float | None] = [None] * count
    try:
        listed = answer if isinstance(answer, list) else answer["results"]
        usage = {} if isinstance(answer, list) else answer.get("usage") or {}
        for entry in listed:
            name = "relevance_score" if "relevance_score" in entry else "score"
            by_index[entry["index"]] = float(entry[name])
        tokens = int(usage.get("prompt_tokens") or usage.get("total_tokens") or 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise unexpected() from error
    scores = tuple(score for score in by_index if score is not None)
    if len(scores) < count:
        raise unexpected()
    return Scores(scores, tokens)


def form_of(card: ModelCard, audio: TranscriptionRequest) -> tuple[bytes, str]:
    """The form that OpenAI's `/v1/audio/transcriptions` takes, and its media type."""
    boundary = token_hex(16)
    fields = [("model", card.known_as[0]), *audio.fields]
    parts = [f'form-data; name="{_quoted(name)}"\r\n\r\n{value}'.encode() for name, value in fields]
    head = f'form-data; name="file"; filename="{_quoted(audio.name)}"\r\nContent-Type: {audio.media_type}'
    parts.append(f"{head}\r\n\r\n".encode() + audio.data)
    start = f"--{boundary}\r\nContent-Disposition: ".encode()
    body = b"".join(start + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def _quoted(name: str) -> str:
    """As browsers write the names of fields and files."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _cutter(post: Post, card: ModelCard, request: EmbeddingRequest) -> Callable[[Input], Awaitable[Input]]:
    """Cuts inputs for a server that does not, around the tokens that it adds before and after each."""
    limit = card.context if request.truncate in (None, -1) else min(request.truncate or 0, card.context)

    async def cut(text: Input) -> Input:
        body = text if isinstance(text, tuple) else await tokens(text, special=False)
        whole = body if isinstance(text, tuple) else await tokens(text, special=True)
        if len(whole) <= limit:
            return whole
        added = len(whole) - len(body)
        before = next(
            (place for place in range(added + 1) if whole[place : place + len(body)] == body), added
        )
        room = max(limit - added, 0)
        middle = body[len(body) - room :] if request.keep_end else body[:room]
        return (*whole[:before], *middle, *whole[before + len(body) :])

    async def tokens(text: str, *, special: bool) -> tuple[int, ...]:
        return (*(await post("/tokenize", {"content": text, "add_special": special}))["tokens"],)

    return cut


def _batches(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


async def _sequentially(requests: Sequence[T], ask: Callable[[T], Awaitable[U]], param: str) -> list[U]:
    """The answers to all requests, in their order. Few run at a time; a failure ends them all.

    A refusal without a reason blames `param`.
    """
    answers: dict[int, U] = {}
    numbered = iter(enumerate(requests))

    async def work() -> None:
        for place, request in numbered:
            answers[place] = await ask(request)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(MAX_PARALLEL, len(requests))):
                group.create_task(work())
    except ExceptionGroup as failures:
        error = failures.exceptions[0]
        if isinstance(error, RequestError) and error.param in (None, "conversation"):
            error.param = param
        raise error from None
    return [answers[place] for place in range(len(requests))]
