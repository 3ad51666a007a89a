"""Token ids → text, for engines that yield ids only.

Strategy: a table of bytes per id and an incremental UTF-8 decoder. A character
that takes several tokens is returned with the last of them; bytes that are not
UTF-8 become U+FFFD. Each id costs the same whatever came before it.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence

from antiphon.core.chunks import Chunk, Finish, Token


class Detokenizer:
    """Turns the ids of one generation into chunks.

    `vocabulary` holds the bytes of each id. `special` names the ids that are
    control tokens; their text is hidden unless `preserve` lists it.
    """

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        special: Mapping[int, str] | None = None,
        preserve: frozenset[str] = frozenset(),
    ) -> None:
        self._vocabulary = vocabulary
        self._special = {id_: text if text in preserve else "" for id_, text in (special or {}).items()}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> Chunk:
        """The text that these ids complete, as one chunk."""
        tokens = tuple(Token(id_, self._text(id_)) for id_ in ids)
        return Chunk("".join(token.text for token in tokens), tokens)

    def finish(self, finish: Finish) -> Chunk:
        """The last chunk. An incomplete character becomes U+FFFD."""
        return Chunk(self._utf8.decode(b"", True), (), finish)

    def _text(self, id_: int) -> str:
        special = self._special.get(id_)
        if special is None:
            piece = self._vocabulary[id_] if 0 <= id_ < len(self._vocabulary) else b""
            return self._utf8.decode(piece)
        # A control token ends an incomplete character before it.
        return self._utf8.decode(b"", True) + special
