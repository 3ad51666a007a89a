"""Maps text to the tokens that it consists of.

A token belongs to the piece of text with its first character; a token without text
(a part of a character, or hidden) belongs to the piece after it. The cost per token
does not depend on the length of the text.
"""

from collections import deque

from antiphon.core.chunks import Chunk, Token


class TokenMap:
    """Collects the tokens of chunks, and returns them with the text that is read from the chunks.

    `written` characters came in chunks, `position` of them were read.
    """

    __slots__ = ("_tokens", "position", "written")

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, Token]] = deque()  # with the offset where each begins
        self.written = 0
        self.position = 0

    def add(self, chunk: Chunk) -> None:
        """Add the tokens of a chunk, before its text is read."""
        offset = self.written
        self.written += len(chunk.text)
        if len(chunk.tokens) == 1:  # the common case, in half the time
            self._tokens.append((offset, chunk.tokens[0]))
            return
        for token in chunk.tokens:
            self._tokens.append((offset, token))
            # An engine may hide part of a token's text: stay inside the chunk.
            offset = min(offset + len(token.text), self.written)

    def take(self, length: int) -> tuple[Token, ...]:
        """The tokens that begin in the next `length` characters."""
        self.position += length
        tokens = self._tokens
        if not tokens or tokens[0][0] >= self.position:
            return ()
        if len(tokens) == 1:
            return (tokens.popleft()[1],)
        taken = []
        while tokens and tokens[0][0] < self.position:
            taken.append(tokens.popleft()[1])
        return tuple(taken)

    @property
    def idle(self) -> bool:
        """All text was read, and no token waits for the text that it belongs to."""
        return not self._tokens and self.position == self.written

    def rest(self) -> tuple[Token, ...]:
        """The remaining tokens, those after the last character."""
        rest = tuple(token for _, token in self._tokens)
        self._tokens.clear()
        return rest
