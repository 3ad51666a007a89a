"""Embeddings, rankings and scores: requests → requests to a model, and its results → bodies.

Embeddings are OpenAI's, with the options of vLLM and other servers for cutting long inputs; rankings have
the form of Jina's and Cohere's API, as in vLLM and llama-server; scores are vLLM's.
"""

from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from sys import byteorder
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.apis.request import AtLeastOne, Count, CountOrAll
from antiphon.core.errors import RequestError
from antiphon.core.limits import Limits
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores

BYTES_PER_TOKEN = 4
"""Of a text, about: limits count before anything is tokenized."""

Inputs = Annotated[list[str | Count | list[Count]], Meta(min_length=1)]


class EmbeddingsRequest(Struct, kw_only=True):
    """POST /v1/embeddings. `input` is a text or its token ids, or a list of either.

    `truncate_prompt_tokens` (-1: to what the model reads) and `truncation_side` are vLLM's; `truncate` is
    Ollama's, a boolean, or Cohere's, the end that is cut.
    """

    model: str
    input: str | Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: AtLeastOne | None = None
    truncate_prompt_tokens: CountOrAll | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    normalize: bool | None = None
    normalized: bool | None = None


class TextObject(Struct):
    """A text as an object."""

    text: str


Document = str | TextObject


class RerankRequest(Struct, kw_only=True):
    """POST /v1/rerank: which documents answer a query best.

    TEI calls them `texts`, and answers with a list. `truncate` is its as well: a text that is too long is
    refused anyway.
    """

    model: str
    query: Document
    documents: Annotated[list[Document], Meta(min_length=1)] | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    top_n: AtLeastOne | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class ScoreRequest(Struct, kw_only=True):
    """POST /score: a text with each of others, or texts with others pairwise."""

    model: str
    text_1: Document | Annotated[list[Document], Meta(min_length=1)]
    text_2: Document | Annotated[list[Document], Meta(min_length=1)]


class VectorUsage(Struct):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, tag_field="object", tag="embedding"):
    """The vector of an input by its place in the request: numbers, or in base64 floats of 32 bits."""

    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, tag_field="object", tag="list"):
    """The body of embeddings."""

    model: str
    data: list[Embedding]
    usage: VectorUsage


class RankedDocument(Struct):
    """A document by its place in the request."""

    index: int
    relevance_score: float
    document: TextObject | UnsetType = UNSET


class Ranking(Struct, tag_field="object", tag="list"):
    """The body of a ranking, the best first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: VectorUsage


class RankedText(Struct):
    """A text by its place in the request, as TEI has it; the body is a list of these, the best first."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class Score(Struct, tag_field="object", tag="score"):
    """The score of a pair."""

    index: int
    score: float


class ScoreList(Struct, tag_field="object", tag="list"):
    """The body of scores."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage


class TranscriptionForm(Struct):
    """POST /v1/audio/transcriptions: the fields of the form that are used. All others are passed on."""

    model: str = ""
    response_format: str = "json"
    stream: bool = False


def accept_inputs(request: EmbeddingsRequest, limits: Limits) -> EmbeddingRequest:
    """The request to the model. Raises RequestError."""
    if request.normalize is False or request.normalized is False:
        param = "normalize" if request.normalize is False else "normalized"
        raise RequestError("Vectors always have the length 1. Leave it out.", param=param)
    inputs = _inputs(request.input)
    _check(limits, "input", inputs)
    truncate, keep_end = _truncation(request)
    return EmbeddingRequest(inputs, request.dimensions, truncate, keep_end)


def _inputs(given: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        inputs: tuple[Any, ...] = (given,)
    elif {*map(type, given)} == {int}:
        inputs = (tuple(given),)
    elif int in map(type, given):
        message = "A list of inputs holds texts and lists of token ids, or is one list of token ids."
        raise RequestError(message, param="input")
    else:
        inputs = tuple(item if isinstance(item, str) else tuple(item) for item in given)  # type: ignore[arg-type]
    for place, item in enumerate(inputs):
        if not item:
            where = f"input[{place}]" if isinstance(given, list) and len(inputs) > 1 else "input"
            raise RequestError(f"'{where}' is empty. Send a text, or token ids.", param=where)
    return inputs


def _truncation(request: EmbeddingsRequest) -> tuple[int | None, bool]:
    """The most tokens of an input, if it may be cut, and whether its end is kept."""
    limit, side, way = request.truncate_prompt_tokens, request.truncation_side, request.truncate
    if way in (False, "NONE") and limit is not None:
        message = "'truncate' says that nothing is cut. Leave one of them out."
        raise RequestError(message, param="truncate_prompt_tokens")
    if limit == 0:
        raise RequestError(
            "At least 1 token is read, or -1 for all that fit.", param="truncate_prompt_tokens"
        )
    if limit is None and way not in (None, False, "NONE"):
        limit = -1
    return limit, limit is not None and (side == "left" or way == "START")


def accept_ranking(request: RerankRequest, limits: Limits) -> tuple[tuple[str, str], ...]:
    """The pairs to be scored. Raises RequestError."""
    query, documents = _text(request.query), tuple(map(_text, ranked(request)))
    if request.raw_scores:
        message = "Scores are those that the engine gives. Leave it out, or send false."
        raise RequestError(message, param="raw_scores")
    if not query:
        raise RequestError("'query' is empty. Send a text.", param="query")
    _check(limits, "documents", documents, len(documents) * _size(query))
    return tuple((query, document) for document in documents)


def ranked(request: RerankRequest) -> Sequence[Document]:
    """The documents of a request, by either name. Raises RequestError."""
    if request.documents is not None and request.texts is not None:
        raise RequestError("'documents' and 'texts' are one parameter. Send one of them.", param="texts")
    documents = request.texts if request.documents is None else request.documents
    if documents is None:
        message = "Missing required parameter: 'documents'."
        raise RequestError(message, param="documents", code="missing_required_parameter")
    return documents


def accept_scores(request: ScoreRequest, limits: Limits) -> tuple[tuple[str, str], ...]:
    """The pairs to be scored. Raises RequestError."""
    firsts, seconds = _texts(request.text_1), _texts(request.text_2)
    if len(firsts) == 1:
        firsts *= len(seconds)
    if len(firsts) != len(seconds):
        message = f"'text_1' has {len(firsts)} texts, 'text_2' {len(seconds)}: send one, or as many."
        raise RequestError(message, param="text_1")
    _check(limits, "text_2", seconds, tokens_in(firsts))
    return tuple(zip(firsts, seconds, strict=True))


def _texts(given: Document | list[Document]) -> tuple[str, ...]:
    return tuple(map(_text, given)) if isinstance(given, list) else (_text(given),)


def _text(document: Document) -> str:
    return document if isinstance(document, str) else document.text


def tokens_in(inputs: Iterable[str | tuple[int, ...]]) -> int:
    """How many tokens these have, about."""
    return sum(map(_size, inputs))


def _size(item: str | tuple[int, ...]) -> int:
    return len(item) if isinstance(item, tuple) else -(-len(item.encode()) // BYTES_PER_TOKEN)


def _check(limits: Limits, param: str, inputs: Sequence[str | tuple[int, ...]], more: int = 0) -> None:
    limits.check("inputs", len(inputs), param)
    tokens = tokens_in(inputs) + more
    if tokens > limits.input_tokens:
        limits.refuse("input_tokens", param, f"'{param}' has about {tokens} tokens")


def embeddings_body(model: str, embeddings: Embeddings, encoding: str | None) -> Iterator[bytes]:
    """The body, in pieces: one for each vector, and those between them."""
    begin = msgspec.json.encode({"object": "list", "model": model, "usage": _usage(embeddings.tokens)})
    yield begin[:-1] + b',"data":['
    for index, vector in enumerate(embeddings.vectors):
        shown = _packed(vector) if encoding == "base64" else vector
        datum = {"object": "embedding", "index": index, "embedding": shown}
        yield (b"," if index else b"") + msgspec.json.encode(datum)
    yield b"]}"


def _packed(vector: Sequence[float]) -> str:
    """The numbers as little-endian floats of 32 bits."""
    numbers = array("f", vector)
    if byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()


def ranking_body(id_: str, request: RerankRequest, result: Scores) -> bytes:
    """The documents, the best first."""
    documents, scores = ranked(request), result.scores
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: request.top_n]
    if request.texts is not None:
        texts = request.texts if request.return_text else [UNSET] * len(scores)
        return msgspec.json.encode([RankedText(index, scores[index], texts[index]) for index in order])
    shown = bool(request.return_documents)
    results = [
        RankedDocument(index, scores[index], TextObject(_text(documents[index])) if shown else UNSET)
        for index in order
    ]
    return msgspec.json.encode(Ranking(id_, request.model, results, _usage(result.tokens)))


def scores_body(id_: str, created: int, model: str, result: Scores) -> bytes:
    """The scores, in the order of the pairs."""
    data = [Score(index, score) for index, score in enumerate(result.scores)]
    return msgspec.json.encode(ScoreList(id_, created, model, data, _usage(result.tokens)))


def _usage(tokens: int) -> VectorUsage:
    return VectorUsage(tokens, tokens)
