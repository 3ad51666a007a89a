"""Finds answers that repeat the same text endlessly, as small models do.

Once in `STRIDE` characters, the last `PROBE` characters are searched in the text before them. The distance
to the match is the length of the text that may be repeated; one comparison then decides whether it is. Both
use a window of bounded size, so the cost per character does not depend on the length of the answer.
"""

STRIDE = 256
PROBE = 64
WINDOW = 8192
"""Size of the window in characters. A repetition is found if all its copies fit into it."""
MIN_REPEATED = 512
"""The total number of characters of a repetition: a line of dashes is not one."""


class RepetitionDetector:
    """Finds text that is repeated `times` times in a row."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._text = ""
        self._new: list[str] = []
        self._size = 0

    def push(self, text: str) -> bool:
        """Process the next text; returns whether the text now ends with a repetition."""
        self._new.append(text)
        self._size += len(text)
        if self._size < STRIDE:
            return False
        self._text = (self._text + "".join(self._new))[-WINDOW:]
        self._new, self._size = [], 0
        return self._repeats(self._text)

    def _repeats(self, text: str) -> bool:
        place = text.rfind(text[-PROBE:], 0, -1)
        if place < 0:
            return False
        period = len(text) - PROBE - place
        length = max(period * (self._times - 1), MIN_REPEATED - period)
        return length + period <= len(text) and text[-length:] == text[-length - period : -period]
