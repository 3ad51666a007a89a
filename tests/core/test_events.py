"""Merging joins what the chunking cut, and nothing else; hiding calls loses no text."""

from antiphon.core.chunks import Token
from antiphon.core.events import (
    Markup,
    TextDelta,
    TextEnded,
    TextStarted,
)
from tests.laws import merge

A, B = Token(1, "a"), Token(2, "b")


def test_merge_joins_neighbouring_deltas_of_one_kind() -> None:
    events = [TextStarted(), TextDelta("a", "a", (A,)), TextDelta("b", "b", (B,)), TextEnded()]

    assert merge(events) == [TextStarted(), TextDelta("ab", "ab", (A, B)), TextEnded()]


def test_merge_joins_markup() -> None:
    assert merge([Markup("a", (A,)), Markup("b", (B,))]) == [Markup("ab", (A, B))]


def test_merge_keeps_items_apart() -> None:
    events = [TextDelta("a", "a"), TextEnded(), TextStarted(), TextDelta("b", "b")]

    assert merge(events) == events
