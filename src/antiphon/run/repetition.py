"""Finds answers that repeat the same text endlessly, as small models do.

Once in `STRIDE` characters, the last `PROBE` of them are looked for in what comes before. Where they are
found says how long the text is that may be repeated; then one comparison says whether it is. Both run
over a window of bounded size, so that an answer of any length costs the same for each character.
"""

STRIDE = 256
PROBE = 64
WINDOW = 8192
"""Characters that are looked at. What is repeated is found if all its repetitions fit into them."""
LEAST = 512
"""Characters that repetitions must have in all: a line of dashes is none."""


class RepetitionDetector:
    """Finds text that is repeated so many times in a row."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._text = ""
        self._new: list[str] = []
        self._size = 0

    def push(self, text: str) -> bool:
        """Take what was said next; whether it ends with text that was said so many times."""
        self._new.append(text)
        self._size += len(text)
        if self._size < STRIDE:
            return False
        self._text = (self._text + "".join(self._new))[-WINDOW:]
        self._new, self._size = [], 0
        return self._repeats(self._text)

    def _repeats(self, text: str) -> bool:
        found = text.rfind(text[-PROBE:], 0, -1)
        if found < 0:
            return False
        period = len(text) - PROBE - found
        same = max(period * (self._times - 1), LEAST - period)
        return same + period <= len(text) and text[-same:] == text[-same - period : -period]
