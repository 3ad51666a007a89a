"""Which tokens stand behind which piece of text.

A token belongs to the piece that holds its first character; a token without
text (it only began a character, or is hidden) belongs to the piece after it.
Each token is looked at twice, however long the text.
"""

from collections import deque

from antiphon.core.chunks import Chunk, Token


class Ledger:
    """Takes the tokens of chunks, and gives them out with the text that is read from them."""

    __slots__ = ("_read", "_tokens", "_written")

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, Token]] = deque()  # with the offset where each begins
        self._written = 0
        self._read = 0

    def add(self, chunk: Chunk) -> None:
        """Note the tokens of a chunk that is about to be read."""
        offset = self._written
        self._written += len(chunk.text)
        if len(chunk.tokens) == 1:  # the common case, in half the time
            self._tokens.append((offset, chunk.tokens[0]))
            return
        for token in chunk.tokens:
            self._tokens.append((offset, token))
            # An engine may hide part of a token's text: stay inside the chunk.
            offset = min(offset + len(token.text), self._written)

    def take(self, length: int) -> tuple[Token, ...]:
        """The tokens that begin in the next `length` characters."""
        self._read += length
        tokens = self._tokens
        if not tokens or tokens[0][0] >= self._read:
            return ()
        if len(tokens) == 1:
            return (tokens.popleft()[1],)
        taken = []
        while tokens and tokens[0][0] < self._read:
            taken.append(tokens.popleft()[1])
        return tuple(taken)

    @property
    def read(self) -> int:
        """How many characters were read."""
        return self._read

    def rest(self) -> tuple[Token, ...]:
        """All that was not taken: what came after the last character."""
        rest = tuple(token for _, token in self._tokens)
        self._tokens.clear()
        return rest
