"""What an engine yields: chunks of raw model text, with the tokens behind them.

A chunk is the unit in which text leaves an engine: one token, several, or a
character that took several tokens to complete. Its text is the truth; its
tokens say where that text came from, for counting, log probabilities and
replay. Chunks are stored as arrays, so that they can be played again: a field
more goes to the end.

A server that only takes conversations does not give raw text, but parts of the answer:
its chunks are `ChatChunk`s.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct


class FinishReason(StrEnum):
    """Why a generation ended, as the engine saw it."""

    STOP = "stop"
    """The model ended its turn, or a stop string or stop token matched."""
    LENGTH = "length"
    """A token limit or the end of the context cut the generation."""
    ERROR = "error"
    """The engine failed in the middle of it."""
    CONTENT_FILTER = "content_filter"
    """The server of the model did not let it go on."""
    TOOL_LIMIT = "tool_limit"
    """What the server's tools may take in an answer was spent, and the model said nothing. No engine's."""


class Candidate(Struct, frozen=True, gc=False, array_like=True):
    """One of the most likely tokens at a position. `logprob` is natural.

    `raw` holds its bytes if they are not a whole number of characters.
    """

    id: int
    text: str
    logprob: float
    raw: bytes | None = None


class Token(Struct, frozen=True, gc=False, array_like=True):
    """One generated token.

    `text` is what the token added to the chunk's text: empty for a token that
    only began a character or that is hidden (end of turn). `logprob` is the
    natural logarithm of its probability, None unless requested. `raw` holds
    its bytes if log probabilities are wanted and `text` does not hold them all.
    """

    id: int
    text: str
    logprob: float | None = None
    top: tuple[Candidate, ...] = ()
    raw: bytes | None = None


class Finish(Struct, frozen=True, gc=False, array_like=True):
    """The end of one generation.

    `stop` is the stop string or token id that matched, None for the model's
    own end of turn. `completion_tokens` is the engine's own count, for engines
    that give no ids; None means "count the tokens you saw". `reasoning_tokens`, which
    are among them, and `prompt_tokens` are counts of an engine that is asked with conversations.
    `kv_transfer_params` is what a vLLM that computed the prompt says for the one that goes on with it.
    """

    reason: FinishReason
    stop: str | int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int = 0
    prompt_tokens: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None


class Chunk(Struct, frozen=True, gc=False, array_like=True):
    """A piece of model text. The last chunk of a generation has `finish`.

    The first chunk has in `cached_tokens` how many tokens of the prompt the
    engine did not have to compute, and in `media_tokens` how many its media took, beside
    the tokens of its text.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    media_tokens: int = 0


class PieceKind(StrEnum):
    """What a piece of an answer is."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Piece(Struct, frozen=True, gc=False, array_like=True):
    """A piece of an answer whose parts the server tells apart.

    `text` is visible, or reasoning, or more of the arguments of a call. `call` tells the calls of an
    answer apart; `id` and `name` are the call's, as soon as the server names them.
    """

    kind: PieceKind
    text: str
    tokens: tuple[Token, ...] = ()
    call: str = ""
    id: str = ""
    name: str = ""


class ChatChunk(Chunk, frozen=True, gc=False, array_like=False, tag="chat"):
    """A chunk of an answer whose parts the server tells apart: `pieces`, and no text."""

    text: str = ""
    pieces: tuple[Piece, ...] = ()


def merge_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk with the text and the tokens of several, of which only the last may have the end."""
    if len(chunks) == 1:
        return chunks[0]
    merged = Chunk(
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.tokens),
        chunks[-1].finish,
        sum(chunk.cached_tokens for chunk in chunks),
        sum(chunk.media_tokens for chunk in chunks),
    )
    pieces = tuple(piece for chunk in chunks if isinstance(chunk, ChatChunk) for piece in chunk.pieces)
    if not pieces:
        return merged
    return ChatChunk(finish=merged.finish, cached_tokens=merged.cached_tokens, pieces=pieces)
