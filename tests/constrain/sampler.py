"""Draws texts that fit a form, at random: what a model could be made to write."""

from collections.abc import Iterator
from random import Random

from antiphon.constrain.aho_corasick import AhoCorasick, aho_corasick
from antiphon.constrain.grammar_ir import (
    Alternation,
    CharClass,
    Dfa,
    Expr,
    GrammarIR,
    Literal,
    Repeat,
    RuleReference,
    Sequence,
    Until,
)

_LETTERS = "abcXYZ 019<>/\"'\\{}[]:,.-_=()\n\té日👋"
_FAR = 10**9


def samples(grammar_ir: GrammarIR, count: int) -> Iterator[str]:
    """A number of texts, the same ones each time."""
    sampler = Sampler(grammar_ir, Random(0))
    for seed in range(count):
        yield sampler.draw(Random(seed))


class Sampler:
    """Draws texts of one language. Beyond `depth` rules in each other it takes the shortest way out."""

    def __init__(self, grammar_ir: GrammarIR, random: Random, depth: int = 12) -> None:
        self._rules = grammar_ir.rules
        self._start = grammar_ir.start
        self._random = random
        self._depth = depth
        self._known: dict[int, int] = {}
        self._ranks = self._settle()

    def draw(self, random: Random | None = None) -> str:
        self._random = random or self._random
        out: list[str] = []
        self._draw(self._start, 0, out)
        return "".join(out)

    def _draw(self, expr: Expr, depth: int, out: list[str]) -> None:
        if isinstance(expr, Literal):
            out.append(expr.text)
        elif isinstance(expr, CharClass):
            out.append(self._char(expr))
        elif isinstance(expr, Sequence):
            for part in expr.parts:
                self._draw(part, depth, out)
        elif isinstance(expr, Alternation):
            self._draw(self._option(expr, depth), depth, out)
        elif isinstance(expr, Repeat):
            for _ in range(self._times(expr, depth)):
                self._draw(expr.expr, depth + 1, out)
        elif isinstance(expr, RuleReference):
            self._draw(self._rules[expr.name], depth + 1, out)
        elif isinstance(expr, Dfa):
            self._run(expr, depth, out)
        else:
            self._text(expr, depth, out)

    def _char(self, expr: CharClass) -> str:
        low, high = self._random.choice(expr.ranges)
        liked = [char for char in _LETTERS if any(a <= ord(char) <= b for a, b in expr.ranges)]
        if liked and self._random.random() < 0.8:
            return self._random.choice(liked)
        return chr(self._random.randint(low, min(high, low + 200)))

    def _option(self, expr: Alternation, depth: int) -> Expr:
        options = [option for option in expr.options if self._rank(option) < _FAR]
        if depth > self._depth:
            return min(options, key=self._rank)
        return self._random.choice(options)

    def _times(self, expr: Repeat, depth: int) -> int:
        if self._rank(expr.expr) >= _FAR or depth > self._depth:
            return expr.minimum
        maximum = expr.minimum + 4 if expr.maximum is None else min(expr.maximum, expr.minimum + 4)
        return self._random.randint(expr.minimum, maximum)

    def _run(self, expr: Dfa, depth: int, out: list[str]) -> None:
        """A few steps at random, then the shortest way out."""
        state, left = expr.start, _steps_left(expr)
        for step in range(10 + len(expr.transitions)):
            ways = [(read, to) for read, to in expr.transitions[state] if to in left]
            if state in expr.ends and (not ways or step > 8 or self._random.random() < 0.2):
                return
            if step > 8:
                ways = [min(ways, key=lambda way: left[way[1]])]
            read, state = self._random.choice(ways)
            self._draw(read, depth + 1, out)

    def _text(self, expr: Until, depth: int, out: list[str]) -> None:
        found = aho_corasick(tuple(marker for marker, _ in expr.on))
        state = found.state(expr.prefix)
        for _ in range(self._random.randint(0, 8)):
            char = self._random.choice(_LETTERS)
            to = found.step(state, char)
            if isinstance(to, int):
                out.append(char)
                state = to
        ways = [(m, then) for m, then in expr.on if then is not None and self._rank(then) < _FAR]
        if not ways or (expr.open and (depth > self._depth or self._random.random() < 0.3)):
            return
        self._finish(found, state, self._random.choice(ways), depth, out)

    def _finish(
        self, found: AhoCorasick, state: int, way: tuple[str, Expr], depth: int, out: list[str]
    ) -> None:
        """Write the marker, after a space if the text before it cannot be continued."""
        marker, then = way
        for written in (marker.removeprefix(found.prefixes[state]), " " + marker):
            if _completes(found, state, written) == marker:
                out.append(written)
                self._draw(then, depth + 1, out)
                return
        raise AssertionError(f"{marker!r} cannot be written after {found.prefixes[state]!r}")

    def _rank(self, expr: Expr) -> int:
        """How many rules deep the shortest text is."""
        rank = self._known.get(id(expr))
        if rank is None:
            rank = self._known[id(expr)] = self._ranked(expr)
        return rank

    def _ranked(self, expr: Expr) -> int:  # noqa: PLR0911  # one for each form
        if isinstance(expr, Literal):
            return 0
        if isinstance(expr, CharClass):
            return 0 if expr.ranges else _FAR
        if isinstance(expr, Sequence):
            return max(map(self._rank, expr.parts))
        if isinstance(expr, Alternation):
            return min(map(self._rank, expr.options), default=_FAR)
        if isinstance(expr, Repeat):
            return 0 if expr.minimum == 0 else self._rank(expr.expr)
        if isinstance(expr, RuleReference):
            return self._ranks.get(expr.name, _FAR)
        if isinstance(expr, Dfa):
            return 0
        ends = [self._rank(then) for _, then in expr.on if then is not None]
        return 0 if expr.open else min(ends, default=_FAR)

    def _settle(self) -> dict[str, int]:
        self._ranks: dict[str, int] = {}
        for _ in range(len(self._rules) + 1):
            self._known.clear()
            ranks = {name: min(_FAR, self._rank(expr) + 1) for name, expr in self._rules.items()}
            if ranks == self._ranks:
                break
            self._ranks = ranks
        self._known.clear()
        return self._ranks


def _completes(found: AhoCorasick, state: int, text: str) -> str:
    """The marker that the last character of the text completes."""
    at: int | str = state
    for char in text:
        at = found.step(at, char) if isinstance(at, int) else 0
    return at if isinstance(at, str) else ""


def _steps_left(dfa: Dfa) -> dict[int, int]:
    """How far each state is from one in which the text may end; those from which there is none are left out."""
    left = dict.fromkeys(dfa.ends, 0)
    for _ in dfa.transitions:
        for state, ways in enumerate(dfa.transitions):
            found = [left[to] + 1 for _, to in ways if to in left]
            if found and state not in left:
                left[state] = min(found)
    return left
