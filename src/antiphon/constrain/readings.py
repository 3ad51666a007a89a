"""In how many ways a text can be read as a form, and what to do where these are too many.

Whoever holds a model to a grammar tries each of its tokens, and follows every
way to read it: `(a?){30}` has millions for one long token, and stops the engine
for minutes. So an adversary looks for the text with the most readings, a token
long, from every repetition on. What it finds to be worse than `MAX_READINGS`
becomes a machine, which has one way to read a text.

It also looks at what refers to itself: alternatives that begin alike, and hold
themselves, double at every level, and stay undecided until the end.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest

from antiphon.constrain.form import (
    Chars,
    Choice,
    Form,
    Language,
    Literal,
    Ranges,
    Ref,
    Repeat,
    Sequence,
    Until,
    children,
    choice,
    complement,
    repeat,
    sequence,
    united,
)
from antiphon.constrain.machine import machine_of
from antiphon.constrain.matcher import Matcher, Stack

MAX_READINGS = 500
"""Ways to read a token, at the most: some tenths of a second for a whole vocabulary."""
TOKEN = 12
"""Characters of a long token."""
MAX_UNDECIDED = 100
"""Places in a grammar where a reader may be at a time, where it refers to itself."""
NESTED = 200
"""Characters in which it is nested some ten times."""

_BEAM = 3
_TRIED = 6


class AmbiguousError(ValueError):
    """A form can be read in too many ways."""


def told_apart(form: Form, rules: Mapping[str, Form] = {}) -> Form:
    """The same texts, with few ways to read each. Raises `AmbiguousError` where that is not to be had."""
    found = _parts_told_apart(form, rules)
    return found if _few(found, rules) else _machine(form, rules)


def _parts_told_apart(form: Form, rules: Mapping[str, Form]) -> Form:
    match form:
        case Sequence(parts):
            return sequence(*(_parts_told_apart(part, rules) for part in parts))
        case Choice(options):
            return choice(*(_parts_told_apart(option, rules) for option in options))
        case Repeat(inner, least, most) if most != 1 and not isinstance(inner, Chars | Literal):
            found = repeat(_parts_told_apart(inner, rules), least, most)
            return found if _few(found, rules) else _machine(form, rules)
    return form


def _few(form: Form, rules: Mapping[str, Form]) -> bool:
    return _Adversary(Language(form, rules)).readings() <= MAX_READINGS


def undecided(rules: Mapping[str, Form]) -> list[str]:
    """The rules that refer to themselves, and of which too much may stay undecided."""
    return [
        name for name in circles(rules) if _Adversary(Language(Ref(name), rules)).places() > MAX_UNDECIDED
    ]


def circles(rules: Mapping[str, Form]) -> list[str]:
    """The rules that refer to themselves, through others or not."""
    direct = {name: referred(form) for name, form in rules.items()}
    return [name for name in rules if name in _reached(name, direct)]


def referred(form: Form) -> set[str]:
    """The rules that a form refers to."""
    return {form.name} if isinstance(form, Ref) else set().union(*map(referred, children(form)))


def _reached(name: str, direct: Mapping[str, set[str]]) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        new = direct.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def _machine(form: Form, rules: Mapping[str, Form]) -> Form:
    """A machine for a form, with the rules that it refers to written in place."""
    found = None if _reached_circle(form, rules) else machine_of(_inlined(form, rules))
    if found is None:
        raise AmbiguousError("parts that can be read in too many ways")
    return found


def _reached_circle(form: Form, rules: Mapping[str, Form]) -> bool:
    circular = set(circles(rules))
    direct = {name: referred(each) for name, each in rules.items()}
    return any(name in circular or _reached(name, direct) & circular for name in referred(form))


def _inlined(form: Form, rules: Mapping[str, Form]) -> Form:
    match form:
        case Ref(name):
            return _inlined(rules[name], rules)
        case Sequence(parts):
            return sequence(*(_inlined(part, rules) for part in parts))
        case Choice(options):
            return choice(*(_inlined(option, rules) for option in options))
        case Repeat(inner, least, most):
            return repeat(_inlined(inner, rules), least, most)
    return form


Readings = Counter[Stack]
"""Where a reader may be, and in how many ways it came there."""


class _Adversary(Matcher):
    """Looks for texts that are hard to read: at each step it goes on with the few worst that it knows."""

    def readings(self) -> int:
        """Ways to read a token, as far as it finds them."""
        return self._worst(TOKEN, MAX_READINGS, lambda readings: sum(readings.values()))

    def places(self) -> int:
        """Places where a reader may be, as far as it finds them."""
        return self._worst(NESTED, MAX_UNDECIDED, len)

    def _worst(self, length: int, enough: int, measure: Callable[[Readings], int]) -> int:
        """The highest measure that a text of this length leads to; beyond `enough` it is not looked for."""
        texts: list[Readings] = [Counter(self.tops)]
        most = 1
        for _ in range(length):
            found = (self._read(each, char) for each in texts for char in _chars(each))
            texts = nlargest(_BEAM, filter(None, found), key=measure)
            most = max([most, *map(measure, texts)])
            if most > enough:
                break
        return most

    def _read(self, readings: Readings, char: str) -> Readings:
        """The readings of a text with one character more."""
        found: Readings = Counter()
        for top, ways in readings.items():
            for after in self.after(top, char):
                found[after] += ways
        return found


def _chars(readings: Readings) -> list[str]:
    """The characters with which most readings go on."""
    edges: Counter[int] = Counter()
    spans = [(span, ways) for top, ways in readings.items() for span in _spans(top)]
    for low in {low for (low, _), _ in spans}:
        edges[low] = sum(ways for (a, b), ways in spans if a <= low <= b)
    return [chr(low) for low, _ in edges.most_common(_TRIED)]


def _spans(top: Stack) -> Ranges:
    """The characters that are read there: of text up to a marker, those that do not begin one."""
    form = top.form
    if isinstance(form, Chars):
        return form.ranges
    if isinstance(form, Literal):
        return ((ord(form.text[top.at]), ord(form.text[top.at])),)
    assert isinstance(form, Until)
    return complement(united((ord(marker[0]), ord(marker[0])) for marker, _ in form.on))
