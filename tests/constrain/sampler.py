"""Draws texts that fit a form, at random: what a model could be made to write."""

from collections.abc import Iterator
from random import Random

from antiphon.constrain.automaton import Automaton, automaton
from antiphon.constrain.form import (
    Chars,
    Choice,
    Form,
    Language,
    Literal,
    Machine,
    Ref,
    Repeat,
    Sequence,
    Until,
)

_LETTERS = "abcXYZ 019<>/\"'\\{}[]:,.-_=()\n\té日👋"
_FAR = 10**9


def samples(language: Language, count: int) -> Iterator[str]:
    """So many texts, the same ones each time."""
    for seed in range(count):
        yield Sampler(language, Random(seed)).draw()


class Sampler:
    """Draws texts of one language. Beyond `depth` rules in each other it takes the shortest way out."""

    def __init__(self, language: Language, random: Random, depth: int = 12) -> None:
        self._rules = language.rules
        self._start = language.start
        self._random = random
        self._depth = depth
        self._ranks = self._settle()

    def draw(self) -> str:
        out: list[str] = []
        self._draw(self._start, 0, out)
        return "".join(out)

    def _draw(self, form: Form, depth: int, out: list[str]) -> None:
        if isinstance(form, Literal):
            out.append(form.text)
        elif isinstance(form, Chars):
            out.append(self._char(form))
        elif isinstance(form, Sequence):
            for part in form.parts:
                self._draw(part, depth, out)
        elif isinstance(form, Choice):
            self._draw(self._option(form, depth), depth, out)
        elif isinstance(form, Repeat):
            for _ in range(self._times(form, depth)):
                self._draw(form.form, depth + 1, out)
        elif isinstance(form, Ref):
            self._draw(self._rules[form.name], depth + 1, out)
        elif isinstance(form, Machine):
            self._run(form, depth, out)
        else:
            self._text(form, depth, out)

    def _char(self, form: Chars) -> str:
        low, high = self._random.choice(form.ranges)
        liked = [char for char in _LETTERS if any(a <= ord(char) <= b for a, b in form.ranges)]
        if liked and self._random.random() < 0.8:
            return self._random.choice(liked)
        return chr(self._random.randint(low, min(high, low + 200)))

    def _option(self, form: Choice, depth: int) -> Form:
        options = [option for option in form.options if self._rank(option) < _FAR]
        if depth > self._depth:
            return min(options, key=self._rank)
        return self._random.choice(options)

    def _times(self, form: Repeat, depth: int) -> int:
        if self._rank(form.form) >= _FAR or depth > self._depth:
            return form.least
        most = form.least + 4 if form.most is None else min(form.most, form.least + 4)
        return self._random.randint(form.least, most)

    def _run(self, form: Machine, depth: int, out: list[str]) -> None:
        """A few steps at random, then the shortest way out."""
        state, left = form.begun, _steps_left(form)
        for step in range(10 + len(form.ways)):
            if state in form.ends and (step > 8 or self._random.random() < 0.2):
                return
            ways = [(read, to) for read, to in form.ways[state] if to in left]
            if step > 8:
                ways = [min(ways, key=lambda way: left[way[1]])]
            read, state = self._random.choice(ways)
            self._draw(read, depth + 1, out)

    def _text(self, form: Until, depth: int, out: list[str]) -> None:
        found = automaton(tuple(marker for marker, _ in form.on))
        state = found.state(form.begun)
        for _ in range(self._random.randint(0, 8)):
            char = self._random.choice(_LETTERS)
            to = found.step(state, char)
            if isinstance(to, int):
                out.append(char)
                state = to
        ways = [(m, then) for m, then in form.on if then is not None and self._rank(then) < _FAR]
        if not ways or (form.open and (depth > self._depth or self._random.random() < 0.3)):
            return
        self._finish(found, state, self._random.choice(ways), depth, out)

    def _finish(
        self, found: Automaton, state: int, way: tuple[str, Form], depth: int, out: list[str]
    ) -> None:
        """Write the marker, after a space if what stands there cannot be gone on with."""
        marker, then = way
        for written in (marker.removeprefix(found.begun[state]), " " + marker):
            if _completes(found, state, written) == marker:
                out.append(written)
                self._draw(then, depth + 1, out)
                return
        raise AssertionError(f"{marker!r} cannot be written after {found.begun[state]!r}")

    def _rank(self, form: Form) -> int:  # noqa: PLR0911  # one for each form
        """How many rules deep the shortest text is."""
        if isinstance(form, Literal):
            return 0
        if isinstance(form, Chars):
            return 0 if form.ranges else _FAR
        if isinstance(form, Sequence):
            return max(map(self._rank, form.parts))
        if isinstance(form, Choice):
            return min(map(self._rank, form.options), default=_FAR)
        if isinstance(form, Repeat):
            return 0 if form.least == 0 else self._rank(form.form)
        if isinstance(form, Ref):
            return self._ranks.get(form.name, _FAR)
        if isinstance(form, Machine):
            return 0
        ends = [self._rank(then) for _, then in form.on if then is not None]
        return 0 if form.open else min(ends, default=_FAR)

    def _settle(self) -> dict[str, int]:
        self._ranks: dict[str, int] = {}
        for _ in range(len(self._rules) + 1):
            ranks = {name: min(_FAR, self._rank(form) + 1) for name, form in self._rules.items()}
            if ranks == self._ranks:
                break
            self._ranks = ranks
        return self._ranks


def _completes(found: Automaton, state: int, text: str) -> str:
    """The marker that the last character of the text completes."""
    at: int | str = state
    for char in text:
        at = found.step(at, char) if isinstance(at, int) else 0
    return at if isinstance(at, str) else ""


def _steps_left(machine: Machine) -> dict[int, int]:
    """How far each state is from one in which the text may end; those from which there is none are left out."""
    left = dict.fromkeys(machine.ends, 0)
    for _ in machine.ways:
        for state, ways in enumerate(machine.ways):
            found = [left[to] + 1 for _, to in ways if to in left]
            if found and state not in left:
                left[state] = min(found)
    return left
