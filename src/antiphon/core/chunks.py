"""What an engine yields: chunks of raw model text, with their tokens.

A chunk is the unit in which an engine returns text: one token, several, or a character that took several
tokens to complete. The text is authoritative; the tokens are for counts, log probabilities and replay. Chunks
are stored as arrays, and decoded again for a replay: append new fields at the end.

A server that takes conversations only does not return raw text, but parts of the answer: its chunks are
`ChatChunk`s.

They have `gc=False`, as events have: there are many, in no cycles. If the garbage collector tracks both,
reasoning and calls take a quarter longer in the bench, and long answers more.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct


class FinishReason(StrEnum):
    """Why a generation ended, as the engine saw it."""

    STOP = "stop"
    """The model ended its turn, or a stop string or stop token matched."""
    LENGTH = "length"
    """A token limit or the end of the context cut the generation."""
    ERROR = "error"
    """The engine failed in the middle of it."""
    CONTENT_FILTER = "content_filter"
    """The server of the model did not allow it to continue."""
    TOOL_LIMIT = "tool_limit"
    """The budget of the server's tools was used up, and the model wrote no text. Not a reason of engines."""
    STEERED = "steered"
    """Its client has sent more input: it ended where a conversation can go on. Not a reason of engines."""


class Candidate(Struct, frozen=True, gc=False, array_like=True):
    """One of the most likely tokens at a position. `logprob` is natural.

    `raw` holds its bytes if they are not a whole number of characters.
    """

    id: int
    text: str
    logprob: float
    raw: bytes | None = None


TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""The id of a token, as it is read from outside."""
ByteValue = Annotated[int, Meta(ge=0, le=255)]
"""One of the bytes of a token, as it is read from outside."""
TokenCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A number of tokens, as it is read from outside."""


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


class PromptToken(Token, frozen=True, gc=False, array_like=True):
    """A token of a prompt. `rank` is its place among all tokens, the likeliest being 1; None if unknown."""

    rank: int | None = None


class Finish(Struct, frozen=True, gc=False, array_like=True):
    """The end of one generation.

    `stop` is the stop string or token id that matched, None for the model's own end of turn.
    `completion_tokens` is the engine's own count, for engines that give no ids; None means "count the tokens
    of the chunks". `reasoning_tokens`, which are among them, and `prompt_tokens` are counts of an engine that
    takes conversations. `kv_transfer_params` is what a vLLM that computed the prompt returns for the vLLM
    that continues. `closed` is the number of the last tokens, which end the form of an answer that was cut,
    and `unused` that of the tokens that it could still have had; no engine sets them.
    """

    reason: FinishReason
    stop: str | int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int = 0
    prompt_tokens: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None
    closed: int = 0
    unused: int = 0


class Chunk(Struct, frozen=True, gc=False, array_like=True):
    """A piece of model text. The last chunk of a generation has `finish`.

    In the first chunk, `cached_tokens` is the number of the prompt's tokens that the engine did not have to
    compute, and `media_tokens` the number of tokens of its media, which are not among those of its text.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    media_tokens: int = 0


class PieceKind(StrEnum):
    """The kind of a piece of an answer."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Piece(Struct, frozen=True, gc=False, array_like=True):
    """A piece of an answer whose parts the server separates.

    `text` is visible text, reasoning, or a fragment of the arguments of a call. `call` identifies the call
    within the answer; `id` and `name` are the call's, as soon as the server names them.
    """

    kind: PieceKind
    text: str
    tokens: tuple[Token, ...] = ()
    call: str = ""
    id: str = ""
    name: str = ""


class ChatChunk(Chunk, frozen=True, gc=False, array_like=False, tag="chat"):
    """A chunk of an answer whose parts the server separates: `pieces`, and no text."""

    text: str = ""
    pieces: tuple[Piece, ...] = ()


def merge_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk with the text and the tokens of several. Only the last of these may have `finish`."""
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
