"""Properties of a whole grammar: can anything match it, is it left-recursive, how long are its texts."""

from collections.abc import Callable

from antiphon.constrain.grammar_ir import (
    NOTHING,
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
    alternation,
    children,
    repeat,
    sequence,
)
from antiphon.core.errors import RequestError

MAX_EMPTY = 1000
"""The highest count of what may be empty."""


def without_unused_rules(grammar_ir: GrammarIR) -> GrammarIR:
    """The grammar without unreferenced rules."""
    used_rules: dict[str, Expr] = {}
    todo = [grammar_ir.start]
    while todo:
        expr = todo.pop()
        if isinstance(expr, RuleReference):
            if expr.name not in used_rules:
                used_rules[expr.name] = grammar_ir.rules[expr.name]
                todo.append(used_rules[expr.name])
        else:
            todo += children(expr)
    return GrammarIR(grammar_ir.start, used_rules)


def without_dead_ends(grammar_ir: GrammarIR) -> GrammarIR:
    """The grammar without rules that no text matches: a model that enters one would not come out of it."""
    has_text = _fixed_point(grammar_ir, is_satisfiable)
    dead = frozenset(name for name in grammar_ir.rules if not has_text(RuleReference(name)))
    if not dead:
        return grammar_ir
    rules = {name: _without(expr, dead) for name, expr in grammar_ir.rules.items() if name not in dead}
    return GrammarIR(_without(grammar_ir.start, dead), rules)


def _without(expr: Expr, dead: frozenset[str]) -> Expr:  # noqa: PLR0911  # one for each type
    """The expression where these rules match nothing."""
    match expr:
        case RuleReference(name):
            return NOTHING if name in dead else expr
        case Sequence(parts):
            return sequence(*(_without(part, dead) for part in parts))
        case Alternation(options):
            return alternation(*(_without(option, dead) for option in options))
        case Repeat(inner, minimum, maximum):
            return repeat(_without(inner, dead), minimum, maximum)
        case Until(on):
            ways = ((marker, None if then is None else _without(then, dead)) for marker, then in on)
            then_dead = tuple((marker, None if then == NOTHING else then) for marker, then in ways)
            return Until(then_dead, expr.open, expr.prefix)
        case Dfa(transitions, ends, start):
            rows = (((_without(read, dead), to) for read, to in row) for row in transitions)
            return Dfa(tuple(tuple(w for w in row if w[0] != NOTHING) for row in rows), ends, start)
        case _:
            return expr


def validate(grammar_ir: GrammarIR, param: str) -> None:
    """Raises RequestError for that parameter if nothing matches, or if a rule is left-recursive."""
    if not _fixed_point(grammar_ir, is_satisfiable)(grammar_ir.start):
        raise RequestError(
            "No answer can match this schema, because it contradicts itself. Change it.", param=param
        )
    if _left_recursive(grammar_ir):
        raise RequestError(
            "The grammar or schema is left-recursive. Rewrite it without left recursion.", param=param
        )


def counts_too_much_of_nothing(grammar_ir: GrammarIR) -> bool:
    """Whether what may be empty is repeated so often that a reader would follow too many empty rounds."""
    empty = nullable_in(grammar_ir)
    todo = [grammar_ir.start, *grammar_ir.rules.values()]
    while todo:
        expr = todo.pop()
        todo += children(expr)
        if isinstance(expr, Repeat) and max(expr.minimum, expr.maximum or 0) > MAX_EMPTY and empty(expr.expr):
            return True
    return False


def is_satisfiable(expr: Expr, has_text: Callable[[str], bool]) -> bool:  # noqa: PLR0911  # one for each type
    """Whether some text matches, given the rules that are known to have one."""
    match expr:
        case CharClass(ranges):
            return bool(ranges)
        case Sequence(parts):
            return all(is_satisfiable(part, has_text) for part in parts)
        case Alternation(options):
            return any(is_satisfiable(option, has_text) for option in options)
        case Repeat(inner, minimum):
            return minimum == 0 or is_satisfiable(inner, has_text)
        case RuleReference(name):
            return has_text(name)
        case Until(on, is_open):
            return is_open or any(then is not None and is_satisfiable(then, has_text) for _, then in on)
        case Dfa():
            return _can_end(expr, has_text)
        case _:
            return True


def nullable(expr: Expr, allows_empty: Callable[[str], bool]) -> bool:  # noqa: PLR0911  # one for each type
    """Whether the empty text matches, given the rules that are known to allow it."""
    match expr:
        case Literal(text):
            return not text
        case CharClass():
            return False
        case Sequence(parts):
            return all(nullable(part, allows_empty) for part in parts)
        case Alternation(options):
            return any(nullable(option, allows_empty) for option in options)
        case Repeat(inner, minimum):
            return minimum == 0 or nullable(inner, allows_empty)
        case RuleReference(name):
            return allows_empty(name)
        case Until(_, is_open):
            return is_open
        case Dfa(_, ends, start):
            return start in ends


def nullable_in(grammar_ir: GrammarIR) -> Callable[[Expr], bool]:
    """Whether the empty text matches an expression of the grammar."""
    return _fixed_point(grammar_ir, nullable)


def _can_end(dfa: Dfa, has_text: Callable[[str], bool]) -> bool:
    """Whether one of the final states can be reached."""
    reached, todo = {dfa.start}, [dfa.start]
    while todo:
        ways = dfa.transitions[todo.pop()]
        new = {to for read, to in ways if is_satisfiable(read, has_text)} - reached
        reached |= new
        todo += new
    return not reached.isdisjoint(dfa.ends)


def _fixed_point(
    grammar_ir: GrammarIR, predicate: Callable[[Expr, Callable[[str], bool]], bool]
) -> Callable[[Expr], bool]:
    """The predicate on expressions, computed for all rules (a least fixed point)."""
    names: set[str] = set()
    size = -1
    while size < len(names):
        size = len(names)
        for name in reversed([*grammar_ir.rules]):  # a rule mostly refers to later ones
            if name not in names and predicate(grammar_ir.rules[name], names.__contains__):
                names.add(name)
    return lambda expr: predicate(expr, names.__contains__)


def _left_recursive(grammar_ir: GrammarIR) -> bool:
    empty = nullable_in(grammar_ir)
    first = {name: _first(expr, empty) for name, expr in grammar_ir.rules.items()}
    for name, begins in first.items():
        reached, todo = set[str](), list(begins)
        while todo:
            rule = todo.pop()
            if rule not in reached:
                reached.add(rule)
                todo += first[rule]
        if name in reached:
            return True
    return False


def _first(expr: Expr, empty: Callable[[Expr], bool]) -> set[str]:
    """The rules that the expression may begin with."""
    if isinstance(expr, RuleReference):
        return {expr.name}
    if isinstance(expr, Sequence):
        rules: set[str] = set()
        for part in expr.parts:
            rules |= _first(part, empty)
            if not empty(part):
                break
        return rules
    return (
        set() if isinstance(expr, Until) else set().union(*(_first(child, empty) for child in children(expr)))
    )


def length(expr: Expr) -> tuple[int, int | None]:
    """The minimum and maximum length; None: no maximum."""
    if isinstance(expr, Literal):
        return len(expr.text), len(expr.text)
    if isinstance(expr, CharClass):
        return 1, 1
    if isinstance(expr, Repeat):
        minimum, maximum = length(expr.expr)
        bounded = maximum is not None and expr.maximum is not None
        return minimum * expr.minimum, (maximum or 0) * (expr.maximum or 0) if bounded else None
    if isinstance(expr, Sequence | Alternation):
        parts = [length(part) for part in (expr.parts if isinstance(expr, Sequence) else expr.options)]
        highs = [maximum for _, maximum in parts]
        lows = [minimum for minimum, _ in parts]
        fold_low, fold_high = (sum, sum) if isinstance(expr, Sequence) else (min, max)
        bounds = [high for high in highs if high is not None]
        return fold_low(lows or [0]), fold_high(bounds or [0]) if len(bounds) == len(highs) else None
    return _dfa_length(expr) if isinstance(expr, Dfa) else (0, None)


def _dfa_length(dfa: Dfa) -> tuple[int, int | None]:
    """The same of a DFA that reads a character in each step."""
    count, read = 0, {dfa.start}
    shortest, longest = None, 0
    while read and count <= len(dfa.transitions):
        if read & dfa.ends:
            shortest, longest = count if shortest is None else shortest, count
        read = {to for state in read for _, to in dfa.transitions[state]}
        count += 1
    return shortest or 0, None if read else longest
