"""Ends answers of servers that ignore the `max_tokens` they were sent.

Tokens are counted where a server names them. Of other servers only texts are known: an answer is over when
it has more of these than tokens were asked for, and more characters than so many tokens have, or when no
tokens could be that long. An answer is never ended because it has as many tokens as it may: the server itself
says why it has ended.
"""

from msgspec.structs import replace

from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, Piece
from antiphon.engines.engine import MAX_CHARACTERS_PER_TOKEN

CHARACTERS = 8
"""Characters that an answer has for each of its tokens, at most: twice as many as in English."""


class TokenLimit:
    """Counts the tokens of one answer, which may have `max_tokens` of them."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._texts = 0
        self._characters = 0

    @property
    def tokens(self) -> int:
        """The tokens so far; of an answer without them, the texts."""
        return self._tokens or self._texts

    def cut(self, chunk: Chunk) -> Chunk:
        """The chunk, or as much of it as the answer may have, with the end."""
        if chunk.tokens:
            self._tokens += len(chunk.tokens)
            return chunk if self._tokens <= self._max_tokens else self._cut_tokens(chunk)
        characters = _characters(chunk)
        if not characters:
            return chunk
        self._texts += 1
        self._characters += characters
        if self._characters <= CHARACTERS * self._max_tokens or chunk.finish is not None:
            return chunk
        if (
            self._texts <= self._max_tokens
            and self._characters <= MAX_CHARACTERS_PER_TOKEN * self._max_tokens
        ):
            return chunk
        return self._cut_text(chunk, max(0, CHARACTERS * self._max_tokens - (self._characters - characters)))

    def _cut_tokens(self, chunk: Chunk) -> Chunk:
        tokens = chunk.tokens[: max(0, len(chunk.tokens) - (self._tokens - self._max_tokens))]
        text = "".join(token.text for token in tokens)
        if tokens and not text:  # of several tokens, one has the text of all
            text = chunk.text[: CHARACTERS * len(tokens)]
            tokens = (*tokens[:-1], replace(tokens[-1], text=text))
        return replace(chunk, text=text, tokens=tokens, finish=Finish(FinishReason.LENGTH))

    def _cut_text(self, chunk: Chunk, room: int) -> Chunk:
        end = Finish(FinishReason.LENGTH, completion_tokens=self._max_tokens)
        if not isinstance(chunk, ChatChunk):
            return replace(chunk, text=chunk.text[:room], finish=end)
        pieces: list[Piece] = []
        for piece in chunk.pieces:
            if room > 0:
                whole = len(piece.text) <= room
                pieces.append(piece if whole else replace(piece, text=piece.text[:room], tokens=()))
            room -= len(piece.text)
        return replace(chunk, pieces=(*pieces,), finish=end)


def _characters(chunk: Chunk) -> int:
    if isinstance(chunk, ChatChunk):
        return sum(len(piece.text) for piece in chunk.pieces)
    return len(chunk.text)
