"""Text without quotes: names of arguments, and values that are written verbatim."""

import re
from collections.abc import Sequence

from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    CharClass,
    Expr,
    Literal,
    alternation,
    char_class,
    complement,
    contains,
    map_characters,
    repeat,
    sequence,
    without,
)
from antiphon.constrain.schema_ir import FREE_TEXT

_BARE_NAME = re.compile(r"[^\s:,()\[\]{}<>\"'=&|]{1,200}")
BARE = without(ANY_CHAR, " \t\n\r\f\v\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000:,()[]{}<>\"'=&|")
"""The characters of names that every notation can write without quotes."""
WORD = char_class("A-Za-z0-9_")


def is_bare_name(name: str) -> bool:
    """Whether every notation can write the name of an argument without quotes."""
    return _BARE_NAME.fullmatch(name) is not None


def text_except(names: Sequence[str], letter: CharClass = ANY_CHAR) -> Expr:
    """Any text except these names."""
    letters: dict[str, list[str]] = {}
    for name in names:
        if name:
            letters.setdefault(name[0], []).append(name[1:])
    diverging = without(letter, "".join(letters)) if letters else letter
    ways = [sequence(char, text_except(rests, letter)) for char, rests in letters.items()]
    ends = NOTHING if "" in names else EMPTY
    return alternation(ends, sequence(diverging, repeat(letter)), *ways)


def identifiers_except(taken: Sequence[str]) -> Expr:
    """Names of arguments except these: letters, digits and underscores."""
    letter, begin = char_class("a-zA-Z0-9_"), char_class("a-zA-Z")
    rests: dict[str, list[str]] = {}
    for name in taken:
        if name:
            rests.setdefault(name[0], []).append(name[1:])
    ways = [sequence(c, text_except(tails, letter)) for c, tails in rests.items() if contains(begin, c)]
    return alternation(sequence(without(begin, "".join(rests)), repeat(letter, 0, 40)), *ways)


def bare_names(body: Expr, taken: Sequence[str], letters: CharClass = BARE) -> Expr:
    """Names of arguments that match `body`, of these letters; if all do, identifiers that are not taken."""
    if body == FREE_TEXT:
        return identifiers_except(taken)
    others = CharClass(complement(letters.ranges))

    def change(expr: Literal | CharClass) -> Expr:
        if isinstance(expr, CharClass):
            return without(expr, others)
        return expr if all(contains(letters, char) for char in expr.text) else NOTHING

    return map_characters(body, change)


def without_characters(body: Expr, avoid: str) -> Expr:
    """Text without quotes, without the characters to avoid."""

    def change(expr: Literal | CharClass) -> Expr:
        if isinstance(expr, CharClass):
            return without(expr, avoid)
        return NOTHING if any(char in expr.text for char in avoid) else expr

    return map_characters(body, change)
