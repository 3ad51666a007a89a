"""Which tokens are the labels of questions, at the end of a prompt.

Tokenizers join text across boundaries: whether a form of a label is one token depends on what is before it.
So each form is tokenized after the text at the end of the prompts, and has to add one token to it.
"""

import asyncio
from collections.abc import Iterable, Sequence

from antiphon.decide.labels import DIGITS, LETTERS, PAIRS, YES_NO, distinct, forms_of
from antiphon.engines.engine import Engine

AT_ONCE = 32
"""The number of texts that are tokenized at the same time."""

SINGLE = (*LETTERS, *DIGITS, *YES_NO)
"""The labels that every model should have."""


class LabelTokens:
    """The tokens of labels after a text at the end of prompts."""

    def __init__(self, engine: Engine, end: str) -> None:
        self._engine = engine
        self._end = end
        self._tokens: dict[str, tuple[int, ...]] = {}
        self._pairs: tuple[str, ...] | None = None
        self._lock = asyncio.Lock()

    async def of(self, labels: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each of these labels: none for one that cannot be told apart from others."""
        async with self._lock:
            await self._find(SINGLE if set(labels) <= set(SINGLE) else labels)
        return distinct([self._tokens[label] for label in labels])

    async def pairs(self) -> tuple[str, ...]:
        """The labels of two letters, those that are a token alone, and after a space, first."""
        async with self._lock:
            if self._pairs is None:
                await self._find(PAIRS)
                usable = [label for label in PAIRS if self._tokens[label]]
                whole = len(forms_of(PAIRS[0]))
                self._pairs = (*sorted(usable, key=lambda label: len(self._tokens[label]) < whole),)
        return self._pairs

    async def _find(self, labels: Iterable[str]) -> None:
        forms = [(label, form) for label in labels if label not in self._tokens for form in forms_of(label)]
        if not forms:
            return
        end = await self._engine.tokenize([self._end])
        tokens: dict[str, list[int]] = {label: [] for label, _ in forms}
        for at in range(0, len(forms), AT_ONCE):
            batch = forms[at : at + AT_ONCE]
            texts = (self._engine.tokenize([self._end + form]) for _, form in batch)
            for (label, _), ids in zip(batch, await asyncio.gather(*texts), strict=True):
                if len(ids) == len(end) + 1 and ids[:-1] == end:
                    tokens[label].append(ids[-1])
        self._tokens.update({label: (*ids,) for label, ids in tokens.items()})


def texts_of(labels: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The forms of each label, for engines that tell texts of tokens only."""
    return distinct([forms_of(label) for label in labels])
