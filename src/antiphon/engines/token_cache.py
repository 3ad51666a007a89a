"""Tokenizes prompts in this process, and remembers the tokens of their parts.

A conversation grows by a message or two, but its whole prompt is tokenized for each answer. Tokenizers of
Hugging Face's first split a text at the added tokens (`<|im_end|>`) and tokenize each segment between them by
itself. So here segments are looked up, and only new ones are tokenized: the messages before and the system
prompt, which all conversations have, are not.

This is done only if it gives the same tokens for every text, see `added_tokens`.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Any

from antiphon.core.recent_values import RecentValues

CACHED_BYTES = 32 * 1024 * 1024
"""Memory of the segments that are remembered, at least if there are as many, and at most twice as much. The
history of a coding agent takes two megabytes: those of 16 agents fit, and would take 100 ms of a processor in
each turn if they did not.
"""

SEGMENT_BYTES = 256
"""Memory of a segment besides its characters and its tokens."""

LONG = 8 * 1024
"""New characters from which tokenizing takes milliseconds: more are tokenized in a thread."""

MANY_CHARACTERS = 2**20
"""Characters that are split in milliseconds: more are in a thread."""

MANY_SEGMENTS = 4096
"""Segments that are looked up in a millisecond: more are in a thread."""

_ALONE = frozenset(
    {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Whitespace", "WhitespaceSplit"}
)
"""The pre-tokenizers that work on each segment by itself."""


class TokenCache:
    """Tokenizes with `encode`, and remembers the tokens of segments between `added` tokens.

    Threads may share it.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]], added: Mapping[str, int]) -> None:
        self._encode = encode
        self._added = added
        longest_first = sorted(map(re.escape, added), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(longest_first)})").split if added else _whole
        self._known = RecentValues[str, tuple[int, ...]](CACHED_BYTES)  # by segments
        self._ids: dict[int, int] = {}

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The tokens of all pieces, each tokenized by itself."""
        if (parts := self._known_parts(pieces)) is not None:
            return self._ids_of(parts)
        return await asyncio.to_thread(self._tokens, pieces)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Special ones become their ids, and none are added."""
        return self._tokens((text,))

    def _known_parts(self, pieces: Sequence[str]) -> list[Sequence[str]] | None:
        """The parts of each piece, if few of their characters are new; else None.

        A long conversation is as quick as what it has grown by.
        """
        size = sum(map(len, pieces))
        if size < LONG:
            return [self._split(piece) for piece in pieces]
        if size > MANY_CHARACTERS:
            return None
        split: list[Sequence[str]] = []
        new, left = 0, MANY_SEGMENTS
        for piece in pieces:
            parts = self._split(piece, left)
            left -= len(parts) // 2 + 1
            # Looked up, so that what is known is used, and is still known when it is read.
            new += sum(len(part) for part in parts[::2] if self._known.get(part) is None)
            if left <= 0 or new >= LONG:
                return None
            split.append(parts)
        return split

    def _tokens(self, pieces: Sequence[str]) -> list[int]:
        return self._ids_of(map(self._split, pieces))

    def _ids_of(self, split: Iterable[Sequence[str]]) -> list[int]:
        """The tokens of pieces in parts: segments, and the added tokens between them."""
        ids: list[int] = []
        for parts in split:
            for place, part in enumerate(parts):
                if place % 2:
                    ids.append(self._added[part])
                elif part or not self._added:  # a tokenizer may fill an empty text up
                    known = self._known.get(part)
                    ids += self._remembered(part) if known is None else known
        return ids

    def _remembered(self, segment: str) -> tuple[int, ...]:
        """The tokens of a segment that is not known, and is from now on."""
        # A tokenizer makes a number of 32 bytes for each token. With one for each word of the vocabulary that
        # occurs, what follows finds them in the processor's cache.
        ids = tuple([self._ids.setdefault(id_, id_) for id_ in self._encode(segment)])
        if self._added:  # else it is a whole text, and none follows it that is the same
            self._known.put(segment, ids, SEGMENT_BYTES + getsizeof(segment) + getsizeof(ids))
        return ids


def _whole(text: str, _most: int = 0) -> list[str]:
    """A text that cannot be split, as its only segment."""
    return [text]


def encode_fast(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, without where they are in it, which takes as long again.

    `tokenizer` is one of Hugging Face's. No special tokens are added.
    """
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def added_tokens(tokenizer: Any) -> Mapping[str, int]:
    """The tokens at which a text can be split without changing its tokens, with their ids.

    `tokenizer` is one of Hugging Face's. There are none if there is any doubt: if an added token takes the
    space around it or has to be a word, if the beginning of a text is tokenized in another way, or if texts
    are cut or filled up.
    """
    added = tokenizer.get_added_tokens_decoder()
    alone = all(map(_works_alone, _steps(tokenizer.pre_tokenizer)))
    if not alone or tokenizer.truncation is not None or tokenizer.padding is not None:
        return {}
    if any(token.lstrip or token.rstrip or token.single_word for token in added.values()):
        return {}
    # Normalized ones are searched for in the segments between the others.
    return {token.content: id_ for id_, token in added.items() if not token.normalized}


def _steps(pre_tokenizer: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a pre-tokenizer, one after the other if it is made of several."""
    if pre_tokenizer is not None:
        settings = json.loads(pre_tokenizer.__getstate__())
        yield from settings.get("pretokenizers", (settings,))


def _works_alone(settings: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer does the same with a segment as with the text that it is part of."""
    return settings["type"] in _ALONE and settings.get("prepend_scheme") != "first"
