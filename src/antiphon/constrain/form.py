"""Forms: what a text may look like, independent of any engine's notation.

Small frozen classes, built by the functions below, which keep them flat: a
sequence in a sequence is one sequence, and what nothing fits is `NOTHING`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

MAX_CHAR = 0x10FFFF
MAX_COUNT = 1000
"""The highest count in a repetition: engines write counts out."""

Ranges = tuple[tuple[int, int], ...]
"""Code points from … to …, both included; in order and apart."""


class Literal(Struct, frozen=True, gc=False):
    """This text. Empty, it is nothing at all."""

    text: str


class Chars(Struct, frozen=True):
    """One character in one of the ranges. Without ranges nothing fits."""

    ranges: Ranges


class Sequence(Struct, frozen=True):
    """One after another."""

    parts: tuple["Form", ...]


class Choice(Struct, frozen=True):
    """One of these."""

    options: tuple["Form", ...]


class Repeat(Struct, frozen=True):
    """The form `least` to `most` times; None: any number."""

    form: "Form"
    least: int = 0
    most: int | None = None


class Ref(Struct, frozen=True):
    """What the rule of that name says."""

    name: str


class Until(Struct, frozen=True):
    """Any text up to the first of some markers, and what follows that marker.

    `on` says for each marker what follows it, None for a marker that must not
    come. If `open`, the text may also end without any. `begun` is text that
    is read already, and may be the beginning of a marker.
    """

    on: tuple[tuple[str, "Form | None"], ...]
    open: bool = False
    begun: str = ""


class Machine(Struct, frozen=True):
    """A text read by states: for each, what may come next, with the state that it leads to.

    It begins in the state `begun`, and may end in those of `ends`. What may come next in a
    state has no beginning in common, so that there is one way to read a text.
    """

    ways: tuple[tuple[tuple["Form", int], ...], ...]
    ends: frozenset[int]
    begun: int = 0


Form = Literal | Chars | Sequence | Choice | Repeat | Ref | Until | Machine

EMPTY = Literal("")
NOTHING = Choice(())
"""What no text fits."""


class Language(Struct, frozen=True):
    """A form, and the rules that it and they refer to."""

    start: Form
    rules: Mapping[str, Form] = {}


def sequence(*parts: Form | str) -> Form:
    """One after another; neighbouring literals are joined."""
    flat: list[Form] = []
    for part in map(_form, parts):
        for each in part.parts if isinstance(part, Sequence) else (part,):
            if each == NOTHING:
                return NOTHING
            if isinstance(each, Literal) and flat and isinstance(flat[-1], Literal):
                flat[-1] = Literal(flat[-1].text + each.text)
            elif each != EMPTY:
                flat.append(each)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat)) if flat else EMPTY


def choice(*options: Form | str) -> Form:
    """One of these, each once; what nothing fits is left out."""
    flat: dict[Form, None] = {}
    for option in map(_form, options):
        flat.update(dict.fromkeys(option.options if isinstance(option, Choice) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def optional(form: Form | str) -> Form:
    """The form, or nothing at all."""
    return repeat(form, 0, 1)


def repeat(form: Form | str, least: int = 0, most: int | None = None) -> Form:
    """The form so many times. Counts of counts become one, and what may be empty is none at all."""
    form = _form(form)
    if form == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if most == 0 or form == EMPTY:
        return EMPTY
    if isinstance(form, Choice) and EMPTY in form.options:
        return repeat(choice(*(each for each in form.options if each != EMPTY)), 0, most)
    if isinstance(form, Repeat) and form.least <= 1:
        high = None if most is None or form.most is None else most * form.most
        if (high or 0) <= MAX_COUNT:
            return repeat(form.form, least * form.least, high)
    return form if least == most == 1 else Repeat(form, least, most)


def chars(text: str) -> Chars:
    """One of the characters, where `a-z` is a range."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        last = at + 2 if text[at + 1 : at + 2] == "-" and at + 2 < len(text) else at
        found.append((ord(text[at]), ord(text[last])))
        at = last + 1
    return Chars(united(found))


def without(some: Chars, others: Chars | str) -> Chars:
    """The characters of `some` that are none of the others."""
    taken = Chars(united((ord(c), ord(c)) for c in others)) if isinstance(others, str) else others
    return Chars(_common(some.ranges, complement(taken.ranges)))


def both(some: Chars, others: Chars) -> Chars:
    """The characters that are in both."""
    return Chars(_common(some.ranges, others.ranges))


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, those that touch or overlap joined."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """All other code points."""
    out, next_free = [], 0
    for low, high in ranges:
        if low > next_free:
            out.append((next_free, low - 1))
        next_free = high + 1
    if next_free <= MAX_CHAR:
        out.append((next_free, MAX_CHAR))
    return tuple(out)


def holds(some: Chars, char: str) -> bool:
    """Whether the character is one of these."""
    return any(low <= ord(char) <= high for low, high in some.ranges)


def _common(some: Ranges, others: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in some for c, d in others)
    return united((low, high) for low, high in pairs if low <= high)


def _form(part: "Form | str") -> Form:
    return Literal(part) if isinstance(part, str) else part


ANY = Chars(((0, 0xD7FF), (0xE000, MAX_CHAR)))
"""Any character; surrogates are none."""

SPACE = choice(EMPTY, " ", sequence("\n", repeat(chars(" \t"), 0, 20)), sequence("\n\n"))
"""Space between the parts of a value or of markup: bounded, so that a model cannot lose itself in blanks."""


def children(form: Form) -> tuple[Form, ...]:
    """The forms that a form is made of."""
    if isinstance(form, Sequence):
        return form.parts
    if isinstance(form, Choice):
        return form.options
    if isinstance(form, Repeat):
        return (form.form,)
    if isinstance(form, Until):
        return tuple(then for _, then in form.on if then is not None)
    if isinstance(form, Machine):
        return tuple(read for ways in form.ways for read, _ in ways)
    return ()


def mapped(form: Form, change: Any) -> Form:
    """The form with its literals and characters changed."""
    if isinstance(form, Literal | Chars):
        changed: Form = change(form)
        return changed
    if isinstance(form, Sequence):
        return sequence(*(mapped(part, change) for part in form.parts))
    if isinstance(form, Choice):
        return choice(*(mapped(option, change) for option in form.options))
    if isinstance(form, Machine):
        ways = (((mapped(read, change), to) for read, to in ways) for ways in form.ways)
        return Machine(tuple(map(tuple, ways)), form.ends, form.begun)
    assert isinstance(form, Repeat)
    return repeat(mapped(form.form, change), form.least, form.most)
