"""Finds the first of some markers in text, one character at a time (Aho and Corasick).

A state is the longest prefix of a marker that the text ends with.
"""

from collections.abc import Iterable
from functools import lru_cache


class AhoCorasick:
    """Finds the first of some markers. States are numbers, 0 is the start."""

    def __init__(self, markers: Iterable[str]) -> None:
        texts = tuple(markers)
        self.prefixes = sorted(
            {"", *(marker[:end] for marker in texts for end in range(len(marker)))},
            key=lambda prefix: (len(prefix), prefix),
        )
        """The text of each state: a prefix of a marker."""
        self._numbers = {prefix: number for number, prefix in enumerate(self.prefixes)}
        self._whole = frozenset(texts)
        self._steps = [self._transitions(prefix) for prefix in self.prefixes]

    def step(self, state: int, char: str) -> int | str:
        """The next state, or the marker that the character completes."""
        return self._steps[state].get(char, 0)

    def transitions(self, state: int) -> dict[str, int | str]:
        """Where each character leads that does not lead back to the start."""
        return self._steps[state]

    def state(self, text: str) -> int:
        """The state after the text, which holds no marker."""
        return next((self._numbers[text[at:]] for at in range(len(text)) if text[at:] in self._numbers), 0)

    def _transitions(self, prefix: str) -> dict[str, int | str]:
        # Sorted, so that every process writes the same grammar.
        letters = sorted({marker[at] for marker in self._whole for at in range(len(marker))})
        ways = {char: self._next(prefix + char) for char in letters}
        return {char: to for char, to in ways.items() if to != 0}

    def _next(self, text: str) -> int | str:
        for start in range(len(text)):
            if text[start:] in self._whole:
                return text[start:]
        return self.state(text)


@lru_cache(256)
def aho_corasick(markers: tuple[str, ...]) -> AhoCorasick:
    """The automaton of these markers, cached: there are few sets, which are used repeatedly."""
    return AhoCorasick(markers)
