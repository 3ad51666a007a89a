"""Text without quotes: names of arguments, and values that stand as they are."""

import re
from collections.abc import Sequence

from antiphon.constrain.form import (
    ANY,
    EMPTY,
    NOTHING,
    Chars,
    Form,
    Literal,
    chars,
    choice,
    holds,
    mapped,
    repeat,
    sequence,
    without,
)

_BARE = re.compile(r"[^\s:,()\[\]{}<>\"'=&|]{1,200}")


def is_name(name: str) -> bool:
    """Whether every notation can write the name of an argument without quotes."""
    return _BARE.fullmatch(name) is not None


def other_than(names: Sequence[str], letter: Chars = ANY) -> Form:
    """Text that is none of the names."""
    letters: dict[str, list[str]] = {}
    for name in names:
        if name:
            letters.setdefault(name[0], []).append(name[1:])
    diverging = without(letter, "".join(letters)) if letters else letter
    ways = [sequence(char, other_than(rests, letter)) for char, rests in letters.items()]
    ends = NOTHING if "" in names else EMPTY
    return choice(ends, sequence(diverging, repeat(letter)), *ways)


def plain_names(taken: Sequence[str]) -> Form:
    """Names of arguments that are none of these: letters, digits and underscores."""
    letter, begin = chars("a-zA-Z0-9_"), chars("a-zA-Z")
    rests: dict[str, list[str]] = {}
    for name in taken:
        if name:
            rests.setdefault(name[0], []).append(name[1:])
    ways = [sequence(c, other_than(each, letter)) for c, each in rests.items() if holds(begin, c)]
    return choice(sequence(without(begin, "".join(rests)), repeat(letter, 0, 40)), *ways)


def raw(body: Form, avoid: str) -> Form:
    """Text without quotes, which holds none of the characters to avoid."""

    def change(form: Literal | Chars) -> Form:
        if isinstance(form, Chars):
            return without(form, avoid)
        return NOTHING if any(char in form.text for char in avoid) else form

    return mapped(body, change)
