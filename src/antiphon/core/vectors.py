"""Vectors and scores of texts: requests to a model, and its results."""

from collections.abc import Sequence

from msgspec import Struct


class EmbeddingRequest(Struct, frozen=True):
    """A request for vectors, one for each of the `inputs`: a text, or its token ids.

    Each vector has `dimensions` numbers, None for the model's default. If an input has more than `truncate`
    tokens (-1: than the model reads), only the first are read, or with `keep_end` the last; None refuses it.
    """

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    truncate: int | None = None
    keep_end: bool = False


class Embeddings(Struct, frozen=True):
    """A vector of length 1 for each input, in their order, and how many tokens were read in all."""

    vectors: tuple[Sequence[float], ...]
    tokens: int


class Scores(Struct, frozen=True):
    """How well each document answers its query, higher is better, and how many tokens were read in all."""

    scores: tuple[float, ...]
    tokens: int
