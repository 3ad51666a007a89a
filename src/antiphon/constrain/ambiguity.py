"""Bounds the number of ways in which a text can be parsed.

llama.cpp tries each token of its vocabulary along every possible parse: `(a?){30}` has millions for one long
token, and stops the engine for minutes. A beam search looks for the text of a token's length with the most
derivations. Expressions with more than `MAX_DERIVATIONS` become DFAs, which have one. Recursive rules whose
alternatives begin with the same text double their parser states at every level: these are reported.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest

from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.dfa import dfa_of
from antiphon.constrain.grammar_ir import (
    Alternation,
    CharClass,
    Expr,
    GrammarIR,
    Literal,
    Ranges,
    Repeat,
    RuleReference,
    Sequence,
    Until,
    alternation,
    children,
    complement,
    merged_ranges,
    repeat,
    sequence,
)
from antiphon.constrain.matcher import Matcher, Stack

MAX_DERIVATIONS = 500
"""Ways to read a token, at the most: some tenths of a second for a whole vocabulary."""
TOKEN_LENGTH = 12
"""Characters of a long token."""
MAX_POSITIONS = 100
"""Places in a grammar where a reader may be at a time, where it refers to itself."""
NESTED_LENGTH = 200
"""A length at which text is nested some ten times."""

_BEAM = 3
_TRIED = 6


class AmbiguousError(ValueError):
    """An expression can be read in too many ways."""


def disambiguated(expr: Expr, rules: Mapping[str, Expr], budget: WorkBudget) -> Expr:
    """An equivalent expression with few derivations. Raises `AmbiguousError` if there is none."""
    result = _disambiguated_parts(expr, rules, budget)
    return result if _is_unambiguous(result, rules, budget) else _dfa(expr, rules, budget)


def _disambiguated_parts(expr: Expr, rules: Mapping[str, Expr], budget: WorkBudget) -> Expr:
    match expr:
        case Sequence(parts):
            return sequence(*(_disambiguated_parts(part, rules, budget) for part in parts))
        case Alternation(options):
            return alternation(*(_disambiguated_parts(option, rules, budget) for option in options))
        case Repeat(inner, minimum, maximum) if maximum != 1 and not isinstance(inner, CharClass | Literal):
            repetition = repeat(_disambiguated_parts(inner, rules, budget), minimum, maximum)
            return repetition if _is_unambiguous(repetition, rules, budget) else _dfa(expr, rules, budget)
    return expr


def _is_unambiguous(expr: Expr, rules: Mapping[str, Expr], budget: WorkBudget) -> bool:
    return _AmbiguitySearch(GrammarIR(expr, rules), budget).derivations() <= MAX_DERIVATIONS


def ambiguous_recursion(rules: Mapping[str, Expr], budget: WorkBudget) -> list[str]:
    """The recursive rules with too many derivations."""
    return [
        name
        for name in recursive_rules(rules, budget)
        if _AmbiguitySearch(GrammarIR(RuleReference(name), rules), budget).positions() > MAX_POSITIONS
    ]


def recursive_rules(rules: Mapping[str, Expr], budget: WorkBudget) -> list[str]:
    """The rules that refer to themselves, directly or through others."""
    direct = {name: references(expr) for name, expr in rules.items()}
    return [name for name in rules if name in _reachable(name, direct, budget)]


def references(expr: Expr) -> set[str]:
    """The rules that an expression refers to."""
    return {expr.name} if isinstance(expr, RuleReference) else set().union(*map(references, children(expr)))


def _reachable(name: str, direct: Mapping[str, set[str]], budget: WorkBudget) -> set[str]:
    reached, todo = set[str](), [name]
    while todo:
        new = direct.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
        budget.spend(1)
    return reached


def _dfa(expr: Expr, rules: Mapping[str, Expr], budget: WorkBudget) -> Expr:
    """A DFA for an expression, with the rules that it refers to written in place."""
    dfa = None if _refers_to_recursion(expr, rules, budget) else dfa_of(_inlined(expr, rules), budget)
    if dfa is None:
        raise AmbiguousError("parts that can be read in too many ways")
    return dfa


def _refers_to_recursion(expr: Expr, rules: Mapping[str, Expr], budget: WorkBudget) -> bool:
    circular = set(recursive_rules(rules, budget))
    direct = {name: references(rule) for name, rule in rules.items()}
    return any(name in circular or _reachable(name, direct, budget) & circular for name in references(expr))


def _inlined(expr: Expr, rules: Mapping[str, Expr]) -> Expr:
    match expr:
        case RuleReference(name):
            return _inlined(rules[name], rules)
        case Sequence(parts):
            return sequence(*(_inlined(part, rules) for part in parts))
        case Alternation(options):
            return alternation(*(_inlined(option, rules) for option in options))
        case Repeat(inner, minimum, maximum):
            return repeat(_inlined(inner, rules), minimum, maximum)
    return expr


Derivations = Counter[Stack]
"""The possible states of a parser, with the number of ways that lead to each."""


class _AmbiguitySearch(Matcher):
    """Searches texts with many derivations: each step continues with the few worst ones."""

    def __init__(self, grammar_ir: GrammarIR, budget: WorkBudget) -> None:
        super().__init__(grammar_ir)
        self._budget = budget

    def derivations(self) -> int:
        """Ways to read a token, as far as it finds them."""
        return self._worst(TOKEN_LENGTH, MAX_DERIVATIONS, lambda derivations: sum(derivations.values()))

    def positions(self) -> int:
        """Places where a reader may be, as far as it finds them."""
        return self._worst(NESTED_LENGTH, MAX_POSITIONS, len)

    def _worst(self, length: int, enough: int, measure: Callable[[Derivations], int]) -> int:
        """The highest measure for a text of this length; the search ends when it exceeds `enough`."""
        texts: list[Derivations] = [Counter(self.tops)]
        seen = set[frozenset[tuple[Stack, int]]]()
        worst = 1
        for _ in range(length):
            seen.update(frozenset(text.items()) for text in texts)
            longer = (self._read(text, char) for text in texts for char in _chars(text))
            new = (text for text in longer if text and frozenset(text.items()) not in seen)
            texts = nlargest(_BEAM, new, key=measure)
            worst = max([worst, *map(measure, texts)])
            if worst > enough:
                break
        return worst

    def _read(self, derivations: Derivations, char: str) -> Derivations:
        """The derivations of a text with one more character."""
        result: Derivations = Counter()
        self._budget.spend(1 + len(derivations))
        for top, ways in derivations.items():
            for after in self.after(top, char):
                result[after] += ways
        return result


def _chars(derivations: Derivations) -> list[str]:
    """The characters with which most readings continue."""
    edges: Counter[int] = Counter()
    spans = [(span, ways) for top, ways in derivations.items() for span in _spans(top)]
    for low in {low for (low, _), _ in spans}:
        edges[low] = sum(ways for (a, b), ways in spans if a <= low <= b)
    return [chr(low) for low, _ in edges.most_common(_TRIED)]


def _spans(top: Stack) -> Ranges:
    """The next characters that can be read: in text up to a marker, those that do not begin one."""
    expr = top.expr
    if isinstance(expr, CharClass):
        return expr.ranges
    if isinstance(expr, Literal):
        return ((ord(expr.text[top.at]), ord(expr.text[top.at])),)
    assert isinstance(expr, Until)
    return complement(merged_ranges((ord(marker[0]), ord(marker[0])) for marker, _ in expr.on))
