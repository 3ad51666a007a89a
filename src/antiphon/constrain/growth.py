"""How much longer the shortest way to the end of a grammar can become with each character of a text.

Where a model has a choice, it may take a way that is not the shortest: it begins another element of an array,
an optional member, a longer alternative. That happens with the first character of what it has chosen. So
each character has a growth, the most that the way can become longer where it is read, anywhere in the
grammar. The sum over a text, added to the bound before it, bounds the way after it: without reading the text
with the grammar, which takes longer than there is time for between two tokens.

In a text up to a marker, and in an automaton, the bound is that of the farthest state, which is no sum over
characters.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import inf, isinf

from antiphon.constrain.analysis import nullable_in
from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
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
    children,
)
from antiphon.constrain.shortest import Shortest, Size, bytes_in

ASCII = 128

Growth = tuple[int, ...]
"""For each byte of a text how much longer the way becomes, at the most."""


class Farthest(Shortest):
    """Sizes from the farthest state of each automaton on."""

    def until(self, expr: Until) -> Size:
        return max((size for size in self.marker_distances(expr) if not isinf(size)), default=inf)

    def dfa(self, expr: Dfa) -> Size:
        return max((size for size in self.end_distances(expr) if not isinf(size)), default=inf)


def growth_of(grammar_ir: GrammarIR, farthest: Farthest) -> Growth:
    """How much longer the way becomes with each byte. Those of other characters than ASCII's are alike."""
    table = [0] * (ASCII + 1)
    for characters, size in _read(grammar_ir, farthest):
        for low, high in characters.ranges:
            for code in range(min(low, ASCII), min(high, ASCII) + 1):
                table[code] = max(table[code], size)
    return (*table[:ASCII], *(table[ASCII],) * ASCII)


def growth_in(growth: Growth, text: str) -> int:
    """How much longer the way becomes with this text, at the most."""
    return sum(map(growth.__getitem__, text.encode(errors="surrogatepass")))


def _read(grammar_ir: GrammarIR, farthest: Farthest) -> Iterator[tuple[CharClass, int]]:
    """The characters that are read first in an expression, with what the choices before them have added."""
    for expr, added in _added(grammar_ir, farthest):
        match expr:
            case Literal(text) if text:
                yield _only(text[0]), max(0, added - bytes_in(text[0]))
            case CharClass(ranges) if ranges:
                yield expr, max(0, added - 1)
            case Until(on):
                yield ANY_CHAR, added
                for marker, then in on:
                    if then is not None:
                        more = farthest.size(then) - farthest.size(expr)
                        yield _only(marker[-1]), added + (0 if isinf(more) else max(0, int(more)))


def _added(grammar_ir: GrammarIR, farthest: Farthest) -> list[tuple[Expr, int]]:
    """Each expression with the most that choices have added where it begins: the longest ways down to it."""
    added: dict[int, int] = {}
    exprs: dict[int, Expr] = {}
    todo = deque[Expr]()
    found = [grammar_ir.start, *grammar_ir.rules.values()]
    while found:
        expr = found.pop()
        if id(expr) not in exprs:
            exprs[id(expr)], added[id(expr)] = expr, 0
            todo.append(expr)
            found += children(expr)
    empty = nullable_in(grammar_ir)
    while todo:  # without left recursion there is no cycle
        expr = todo.popleft()
        for begins, more in _begins(expr, grammar_ir.rules, farthest, empty):
            if isinf(more):
                continue  # no text has it
            total = added[id(expr)] + max(0, int(more))
            if total > added[id(begins)]:
                added[id(begins)] = total
                todo.append(begins)
    return [(expr, added[number]) for number, expr in exprs.items()]


def _begins(
    expr: Expr, rules: Mapping[str, Expr], farthest: Farthest, empty: Callable[[Expr], bool]
) -> Iterator[tuple[Expr, Size]]:
    """The expressions that it may begin with, and what choosing each adds."""
    match expr:
        case Sequence(parts):
            for part in parts:
                yield part, 0
                if not empty(part):
                    break
        case Alternation(options):
            least = farthest.size(expr)
            yield from ((option, farthest.size(option) - least) for option in options if least < inf)
        case Repeat(inner, minimum, maximum):
            yield inner, farthest.size(inner) if maximum is None or maximum > minimum else 0
        case RuleReference(name):
            yield rules[name], 0
        case Dfa(transitions):
            yield from ((read, farthest.size(read)) for row in transitions for read, _ in row)


def _only(char: str) -> CharClass:
    return CharClass(((ord(char), ord(char)),))
