"""Finds markers in text that comes in pieces, and holds back what may become one.

Strategy: one compiled pattern per set of markers. At every position it tries the markers, longest first, and
then "the text ends here, in the middle of a marker". So the leftmost marker matches, then the longest, and
the result never depends on how the text was split. The held text is shorter than the longest marker, so the
cost of a piece depends on its own length only.
"""

import re
from collections.abc import Callable, Iterable

from msgspec import Struct


class MarkerMatch(Struct, frozen=True, gc=False):
    """A marker at `text[start:end]`; or, if `marker` is empty, a possible beginning of one."""

    start: int
    end: int
    marker: str


def _prefix_pattern(marker: str, minimum: int = 1) -> str:
    """A pattern for proper prefixes of `marker` with `minimum` characters or more: `a(?:b)?` for `abc`."""
    pattern = ""
    for char in reversed(marker[minimum:-1]):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return re.escape(marker[:minimum]) + pattern


MAX_KNOWN = 16_384
"""The number of texts for which a `PlainTexts` caches whether they are plain."""
MAX_KNOWN_LENGTH = 32
"""Characters in such a text; most tokens are far shorter."""
MAX_SPACE = 256
"""Characters of space that are held back before a possible marker; any more are text."""


class PlainTexts(dict[str, bool]):
    """Text → whether it can only be plain text: not empty, and without a match of `search`.

    A model uses the same tokens repeatedly: a lookup takes a tenth of the time of a search.
    """

    def __init__(self, search: Callable[[str], object]) -> None:
        self._search = search

    def __missing__(self, text: str) -> bool:
        plain = bool(text) and not self._search(text)
        if len(text) <= MAX_KNOWN_LENGTH and len(self) < MAX_KNOWN:
            self[text] = plain
        return plain


NEVER_PLAIN = PlainTexts(bool)
"""Where any text has to be read."""


class Lexer:
    """Looks for the first of `markers`, none of which is empty.

    `plain` matches text without markers that need not be held back, `space` text that is held back only
    because it is space.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(markers)
        longest_first = sorted(self.markers, key=lambda marker: (-len(marker), marker))
        whole = "|".join(map(re.escape, longest_first)) or r"(?!)"
        prefixes = "|".join(_prefix_pattern(marker) for marker in longest_first if len(marker) > 1) or r"(?!)"
        # If a marker is the beginning of another, the longer one may still follow.
        longer = [
            _prefix_pattern(marker, len(short))
            for marker in longest_first
            for short in longest_first
            if short != marker and marker.startswith(short)
        ]
        first = rf"(?:{'|'.join(longer)})\Z|" if longer else ""
        self._search = re.compile(rf"{first}({whole})|(?:{prefixes})\Z").search
        self._search_final = re.compile(rf"({whole})").search
        # Text is not plain if it contains a marker, or ends with the beginning of one, or with space, which
        # belongs to the marker if one follows.
        self.plain = PlainTexts(re.compile(rf"{first}({whole})|(?:{prefixes}|\s)\Z").search)
        search = self._search
        self.space = PlainTexts(lambda text: not text.isspace() or len(text) > MAX_SPACE or search(text))

    def find(self, text: str) -> MarkerMatch | None:
        """The first marker in `text`, or the position from which text must be held back, or None."""
        match = self._search(text)
        return match and MarkerMatch(match.start(), match.end(), match[1] or "")

    def find_final(self, text: str) -> MarkerMatch | None:
        """The first marker in `text`, if there is no more text after it."""
        match = self._search_final(text)
        return match and MarkerMatch(match.start(), match.end(), match[1])
