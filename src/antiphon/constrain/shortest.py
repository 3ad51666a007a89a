"""The shortest way to the end of a grammar, from any place in it.

Sizes are bytes of UTF-8: no tokenizer makes more tokens of a text than it has bytes, but for one that begins
it. The sizes of rules are a least fixed point, as those of `analysis`: with each round, those of deeper texts
are known.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf

from antiphon.constrain.aho_corasick import AhoCorasick, aho_corasick
from antiphon.constrain.grammar_ir import (
    Alternation,
    CharClass,
    Dfa,
    Expr,
    Literal,
    Repeat,
    RuleReference,
    Until,
    contains,
)
from antiphon.constrain.grammar_ir import Sequence as ExprSequence

Size = float
"""Bytes, or `inf` where no text matches."""

_LIKED = "0a -_A"
"""Characters that are written where any of several may be."""


class Shortest:
    """The sizes of the shortest texts of a grammar's expressions, and these texts."""

    def __init__(self, rules: Mapping[str, Expr]) -> None:
        self._rules = rules
        self._sizes: dict[str, Size] = dict.fromkeys(rules, inf)
        self._known: dict[int, tuple[Expr, Size]] = {}
        self._distances: dict[int, tuple[object, list[Size]]] = {}  # by what the states of an automaton share
        self._settle()

    def _settle(self) -> None:
        changed = True
        while changed:
            changed = False
            self._distances.clear()
            for name in reversed([*self._rules]):  # a rule mostly refers to later ones
                size = self._measured(self._rules[name])
                changed = changed or size < self._sizes[name]
                self._sizes[name] = size

    def size(self, expr: Expr) -> Size:
        """The bytes of its shortest text."""
        known = self._known.get(id(expr))
        if known is None or known[0] is not expr:
            known = self._known[id(expr)] = (expr, self._measured(expr))
        return known[1]

    def text(self, expr: Expr) -> str:
        """Its shortest text; of several, that of the first alternatives. There must be one."""
        out: list[str] = []
        todo = [expr]
        while todo:
            expr = todo.pop()
            if isinstance(expr, Literal):
                out.append(expr.text)
            elif isinstance(expr, CharClass):
                out.append(shortest_character(expr))
            else:
                todo += reversed(self.way(expr))
        return "".join(out)

    def way(self, expr: Expr) -> Sequence[Expr]:
        """The expressions that its shortest text is made of."""
        match expr:
            case ExprSequence(parts):
                return parts
            case Alternation(options):
                return [min(options, key=self.size)]
            case Repeat(inner, minimum):
                return [inner] * minimum
            case RuleReference(name):
                return [self._rules[name]]
            case Until():
                return self._way_to_marker(expr)
            case _:
                assert isinstance(expr, Dfa)
                return self._way_to_end(expr)

    def _measured(self, expr: Expr) -> Size:  # noqa: PLR0911  # one for each type
        match expr:
            case Literal(text):
                return bytes_in(text)
            case CharClass(ranges):
                return bytes_in(chr(ranges[0][0])) if ranges else inf
            case ExprSequence(parts):
                return sum(map(self._measured, parts))
            case Alternation(options):
                return min(map(self._measured, options), default=inf)
            case Repeat(inner, minimum):
                return minimum * self._measured(inner) if minimum else 0
            case RuleReference(name):
                return self._sizes[name]
            case Until():
                return self.until(expr)
            case Dfa():
                return self.dfa(expr)

    def until(self, expr: Until) -> Size:
        """The size of a text up to a marker, with what follows it."""
        return self.marker_distances(expr)[automaton_of(expr).state(expr.prefix)]

    def dfa(self, expr: Dfa) -> Size:
        """The size of a text of an automaton."""
        return self.end_distances(expr)[expr.start]

    def marker_distances(self, expr: Until) -> list[Size]:
        """The size from each state of the markers' automaton on."""
        return self._cached(expr.on, lambda: self._marker_distances(expr))

    def end_distances(self, expr: Dfa) -> list[Size]:
        """The size from each state of an automaton on."""
        return self._cached(expr.transitions, lambda: self._end_distances(expr))

    def _cached(self, states: object, measure: Callable[[], list[Size]]) -> list[Size]:
        known = self._distances.get(id(states))
        if known is None:
            known = self._distances[id(states)] = (states, measure())
        return known[1]

    def _marker_distances(self, expr: Until) -> list[Size]:
        steps = _steps(tuple(marker for marker, _ in expr.on))
        if expr.open:
            return [0] * len(steps)
        after = {marker: inf if then is None else self._measured(then) for marker, then in expr.on}
        sizes: list[Size] = [inf] * len(steps)
        changed = True
        while changed:
            changed = False
            for state in reversed(range(len(steps))):  # a state mostly leads to later ones
                size = min(n + (sizes[to] if isinstance(to, int) else after[to]) for _, n, to in steps[state])
                if size < sizes[state]:
                    sizes[state], changed = size, True
        return sizes

    def _end_distances(self, expr: Dfa) -> list[Size]:
        sizes: list[Size] = [0 if state in expr.ends else inf for state in range(len(expr.transitions))]
        ways = [[(self._measured(read), to) for read, to in row] for row in expr.transitions]
        for _ in ways:
            before = [*sizes]
            for state, row in enumerate(ways):
                sizes[state] = min([sizes[state], *(size + sizes[to] for size, to in row)])
            if sizes == before:
                break
        return sizes

    def _way_to_marker(self, expr: Until) -> list[Expr]:
        if expr.open:
            return []
        steps, sizes = _steps(tuple(marker for marker, _ in expr.on)), self.marker_distances(expr)
        after = {marker: inf if then is None else self.size(then) for marker, then in expr.on}
        state, out = automaton_of(expr).state(expr.prefix), ""

        def size(step: Step) -> Size:
            _, count, to = step
            return count + (sizes[to] if isinstance(to, int) else after[to])

        while True:
            char, _, to = min(steps[state], key=size)
            out += char
            if not isinstance(to, int):
                return [
                    Literal(out),
                    *(then for marker, then in expr.on if marker == to and then is not None),
                ]
            state = to

    def _way_to_end(self, expr: Dfa) -> list[Expr]:
        sizes, state, out = self.end_distances(expr), expr.start, list[Expr]()
        while sizes[state]:
            read, state = min(expr.transitions[state], key=lambda way: self.size(way[0]) + sizes[way[1]])
            out.append(read)
        return out


def bytes_in(text: str) -> int:
    """How many bytes a text has."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def shortest_character(expr: CharClass) -> str:
    """One of its characters with the fewest bytes."""
    if (first := expr.ranges[0][0]) >= ord("\x80"):
        return chr(first)
    return next((char for char in _LIKED if contains(expr, char)), chr(first))


def automaton_of(expr: Until) -> AhoCorasick:
    """The automaton that finds the markers of a text."""
    return aho_corasick(tuple(marker for marker, _ in expr.on))


_PRINTED = [*map(chr, range(ord(" "), ord("~") + 1))]

Step = tuple[str, int, int | str]
"""A character, its bytes, and the state or the marker that it leads to."""


@lru_cache(256)
def _steps(markers: tuple[str, ...]) -> list[list[Step]]:
    """The steps from each state of the markers' automaton; one for all that lead back to the first state."""
    automaton = aho_corasick(markers)
    steps: list[list[Step]] = []
    for state in range(len(automaton.prefixes)):
        ways = automaton.transitions(state)
        other = next((char for char in _PRINTED if char not in ways), "é")
        steps.append([(char, bytes_in(char), to) for char, to in {**ways, other: 0}.items()])
    return steps
