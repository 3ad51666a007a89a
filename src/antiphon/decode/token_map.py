"""Maps text to the tokens that it consists of.

A token belongs to the first piece of visible text in it, because clients want the log probabilities of all
visible text. A token of hidden text only belongs to the piece with its last character; a token without text
(a part of a character, or hidden) belongs to the piece after it. The cost per token does not depend on the
length of the text.
"""

from collections import deque
from math import inf

from antiphon.core.chunks import Chunk, Token


class TokenMap:
    """Collects the tokens of chunks, and returns them with the text that is read from the chunks.

    `written` characters have arrived in chunks, `position` of them were read. `least_end` is where the text
    of the tokens of `expect` ends: infinite until they have arrived.
    """

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int, Token]] = deque()  # where each begins and ends
        self._missing = 0  # of the expected tokens
        self.least_end: float = 0
        self.written = 0
        self.position = 0

    def expect(self, least: int) -> None:
        """Find where the text of the next `least` tokens ends."""
        self._missing = least
        self.least_end = inf if least else 0

    def add(self, chunk: Chunk) -> None:
        """Add the tokens of a chunk, before its text is read."""
        offset = self.written
        self.written += len(chunk.text)
        if self._missing:
            self._count_expected(chunk, offset)
        if len(chunk.tokens) == 1:  # the common case, in half the time
            self._tokens.append((offset, self.written, chunk.tokens[0]))
            return
        for token in chunk.tokens:
            # An engine may hide part of a token's text: stay inside the chunk.
            end = min(offset + len(token.text), self.written)
            self._tokens.append((offset, end, token))
            offset = end

    def pass_over(self, length: int, tokens: int) -> None:
        """Text of this length, which has arrived with so many tokens, was read elsewhere."""
        self.written += length
        self.position += length
        if self._missing:
            self._missing = max(0, self._missing - tokens)
            self.least_end = inf if self._missing else self.written

    def _count_expected(self, chunk: Chunk, offset: int) -> None:
        """Count a chunk that has expected tokens. If its tokens are unknown, it is one."""
        texts = [token.text for token in chunk.tokens] or [chunk.text] * bool(chunk.text)
        if len(texts) >= self._missing:
            self.least_end = min(offset + sum(map(len, texts[: self._missing])), self.written)
        self._missing = max(0, self._missing - len(texts))

    def take(self, length: int, visible: bool) -> tuple[Token, ...]:
        """The tokens of the next `length` characters; those that continue after hidden text are held back."""
        self.position += length
        tokens, position = self._tokens, self.position
        result = []
        while tokens and tokens[0][0] < position and (visible or tokens[0][1] <= position):
            result.append(tokens.popleft()[2])
        return tuple(result)

    @property
    def is_inside_token(self) -> bool:
        """Whether a held token begins in text that was read."""
        return bool(self._tokens) and self._tokens[0][0] < self.position

    @property
    def idle(self) -> bool:
        """All text was read, and no token waits for the text that it belongs to."""
        return not self._tokens and self.position == self.written

    def rest(self) -> tuple[Token, ...]:
        """The remaining tokens, those after the last character."""
        if not self._tokens:
            return ()
        rest = tuple([token for _, _, token in self._tokens])
        self._tokens.clear()
        return rest
