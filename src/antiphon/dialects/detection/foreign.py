"""Finds calls of another dialect in text of a model: it may be served with the wrong one.

Markers are searched first, which is cheap. Only if one is found, the dialects that have it decode the text:
those that find a call of an offered tool in it are suggested.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.items import FunctionCall
from antiphon.decode.arguments.types import Schema
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.detection.scorers import opening_markers
from antiphon.dialects.registry import DIALECTS

CHARACTERS = 16_384
"""So much of a text is looked at."""
ATTEMPTS = 8
"""Texts of a model that are decoded: a model may write texts that only quote markers."""

_CALL_WORDS = re.compile("call|tool|function|action|python", re.IGNORECASE)
_STOP = Finish(FinishReason.STOP)


class ForeignCalls:
    """Examines the texts of one model, whose dialect is `own`, until it has found something."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._attempts = ATTEMPTS

    def find(self, text: str, tools: Mapping[str, Schema]) -> Sequence[str]:
        """The dialects that find a call of one of these tools in the text. Reported only once."""
        if not self._attempts or not tools:
            return ()
        text = text[:CHARACTERS]
        marks = [mark for mark in _markers() if mark in text]
        if not marks:
            return ()
        self._attempts -= 1
        names = dict.fromkeys(name for mark in marks for name in _markers()[mark] if name != self._own)
        start = min(text.index(mark) for mark in marks)
        dialects = [name for name in names if _reads_call(name, text[start:], tools)]
        if dialects:
            self._attempts = 0
        return dialects


@cache
def _markers() -> Mapping[str, Sequence[str]]:
    """The markers that only begin calls, with the dialects that have them."""
    markers: dict[str, list[str]] = {}
    for dialect in DIALECTS:
        for mark in opening_markers(dialect):
            if not mark[0].isalnum() and _CALL_WORDS.search(mark):
                markers.setdefault(mark, []).append(dialect.names[0])
    return markers


def _reads_call(name: str, text: str, tools: Mapping[str, Schema]) -> bool:
    decoder, items = Decoder(_table(name), tools=tools), Accumulator()
    for event in [*decoder.feed(Chunk(text)), *decoder.finish(_STOP)]:
        items.push(event)
    return any(isinstance(item, FunctionCall) and item.name in tools for item in items.items)


@cache
def _table(name: str) -> Table:
    return next(Table(dialect.calls) for dialect in DIALECTS if dialect.names[0] == name)
