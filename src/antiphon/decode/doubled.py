"""Markers that a model writes twice: the second one, directly after the first, changes nothing.

Models double the tags around their calls, `</tool_call></tool_call>`. No format has the same marker twice in
a row, so this is the same in all of them.
"""

from antiphon.decode.lexer import MAX_SPACE

MIN_LENGTH = 3
"""Characters of a marker that has a double. Shorter ones, like `>`, are punctuation."""


class DoubledMarker:
    """Takes the double of the last marker out of the text after it."""

    def __init__(self) -> None:
        self._held = ""
        self.expected = ""
        """What the next text may begin with: nothing, but directly after a marker."""

    def expect(self, marker: str) -> None:
        """This marker was read, and the text after it comes next."""
        self.expected = marker.strip() if len(marker) >= MIN_LENGTH else ""

    def take(self, text: str, *, final: bool = False) -> tuple[str, str]:
        """The double with the space before it, and the text after it. What may become one is held back."""
        if not self.expected:
            return "", text
        text, self._held = self._held + text, ""
        space = len(text) - len(text.lstrip())
        if text.startswith(self.expected, space):
            end = space + len(self.expected)
            self.expected = ""
            return text[:end], text[end:]
        if not final and space <= MAX_SPACE and self.expected.startswith(text[space:]):
            self._held = text
            return "", ""
        self.expected = ""
        return "", text

    def take_cut(self, minimum: int) -> tuple[str, str]:
        """The beginning of a double with so many characters, where an answer was cut; or the held text."""
        is_double = len(self._held.strip()) >= minimum
        text, self._held, self.expected = self._held, "", ""
        return (text, "") if is_double else ("", text)
