"""Matches text against a grammar, character by character.

It keeps a set of stacks, as engines do for grammars: the top is an expression and a position in it, below is
what follows. Equal stacks are one object.
"""

from antiphon.constrain.aho_corasick import aho_corasick
from antiphon.constrain.grammar_ir import (
    EMPTY,
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
    contains,
    repeat,
    sequence,
)

MAX_REMEMBERED = 20_000
"""The most stacks that are kept to find equal ones; beyond that they are made again."""


class Stack:
    """An expression, the position in it, and what follows it."""

    def __init__(self, expr: Expr, at: int, rest: "Stack | None") -> None:
        self.expr = expr
        self.at = at
        self.rest = rest


class Matcher:
    """Reads one text. It matches as a prefix if it is `alive`, and as a whole if it is `accepting`."""

    def __init__(self, grammar_ir: GrammarIR) -> None:
        self._rules = grammar_ir.rules
        self._stacks: dict[tuple[int, int, int], Stack] = {}
        self._expansions: dict[int, tuple[list[Stack], bool]] = {}
        self.tops, self.accepting = self._expanded([self._push(grammar_ir.start, 0, None)])

    @property
    def alive(self) -> bool:
        """The text so far is a prefix of a matching text, as far as one character shows."""
        return bool(self.tops) or self.accepting

    def feed(self, text: str) -> bool:
        """Read on; whether the text still fits."""
        for char in text:
            # Cleared together, before new ones: `_expansions` uses ids of stacks that `_stacks` keeps alive.
            if len(self._stacks) > MAX_REMEMBERED:
                self._stacks.clear()
                self._expansions.clear()
            nexts = [stack for top in self.tops for stack in self._after(top, char)]
            self.tops, self.accepting = self._expanded(nexts)
            if not self.alive:
                return False
        return True

    def after(self, top: Stack, char: str) -> list[Stack]:
        """The stacks after this character; none if it cannot be read there."""
        return self._expanded(self._after(top, char))[0]

    def residual(self) -> GrammarIR:
        """The grammar of the possible rests."""
        options = [self._remaining(top) for top in self.tops]
        return GrammarIR(alternation(*options, *([EMPTY] if self.accepting else [])), self._rules)

    def _remaining(self, stack: "Stack | None") -> Expr:
        parts: list[Expr] = []
        while stack is not None:
            parts.append(_rest_of(stack.expr, stack.at))
            stack = stack.rest
        return sequence(*parts)

    def _push(self, expr: Expr, at: int, rest: Stack | None) -> Stack:
        key = (id(expr), at, id(rest))
        stack = self._stacks.get(key)
        if stack is None:
            stack = self._stacks[key] = Stack(expr, at, rest)
        return stack

    def _expanded(self, stacks: list[Stack]) -> tuple[list[Stack], bool]:
        """The stacks with a character to read on top, and whether the text may end here."""
        tops: dict[int, Stack] = {}
        accepting = False
        for stack in stacks:
            readers, ends = self._expansion(stack)
            tops.update((id(top), top) for top in readers)
            accepting = accepting or ends
        return list(tops.values()), accepting

    def _expansion(self, stack: Stack) -> tuple[list[Stack], bool]:
        expansion = self._expansions.get(id(stack))
        if expansion is None:
            expansion = self._expansions[id(stack)] = self._expand(stack)
        return expansion

    def _expand(self, stack: Stack) -> tuple[list[Stack], bool]:
        todo: list[Stack | None] = [stack]
        seen: set[int] = set()
        tops: list[Stack] = []
        accepting = False
        while todo:
            current = todo.pop()
            if current is None:
                accepting = True
            elif id(current) not in seen:
                seen.add(id(current))
                if _reads(current):
                    tops.append(current)
                todo += self._below(current)
        return tops, accepting

    def _below(self, stack: Stack) -> list["Stack | None"]:  # noqa: PLR0911  # one for each type
        """The stacks that may replace this one, without reading a character."""
        expr, at, rest = stack.expr, stack.at, stack.rest
        if isinstance(expr, Literal):
            return [rest] if at == len(expr.text) else []
        if isinstance(expr, Sequence):
            if at == len(expr.parts):
                return [rest]
            after = self._push(expr, at + 1, rest) if at + 1 < len(expr.parts) else rest
            return [self._push(expr.parts[at], 0, after)]
        if isinstance(expr, Alternation):
            return [self._push(option, 0, rest) for option in expr.options]
        if isinstance(expr, Repeat):
            return self._repeated(expr, at, rest)
        if isinstance(expr, RuleReference):
            return [self._push(self._rules[expr.name], 0, rest)]
        if isinstance(expr, Dfa):
            return self._transitions(expr, at, rest)
        return [rest] if isinstance(expr, Until) and expr.open else []

    def _repeated(self, expr: Repeat, at: int, rest: Stack | None) -> list["Stack | None"]:
        below: list[Stack | None] = [rest] if at >= expr.minimum else []
        if expr.maximum is None or at < expr.maximum:
            # Without a maximum, only the minimum is counted: further counts would each be a stack of its own.
            count = min(at + 1, expr.minimum) if expr.maximum is None else at + 1
            below.append(self._push(expr.expr, 0, self._push(expr, count, rest)))
        return below

    def _transitions(self, expr: Dfa, at: int, rest: Stack | None) -> list["Stack | None"]:
        """The transitions of a state: its number plus one, or 0 for the initial state of the DFA."""
        state = at - 1 if at else expr.start
        below: list[Stack | None] = [rest] if state in expr.ends else []
        below += (self._push(read, 0, self._push(expr, to + 1, rest)) for read, to in expr.transitions[state])
        return below

    def _after(self, stack: Stack, char: str) -> list[Stack]:
        """The stacks after the top has read the character; None at their ends becomes an empty literal."""
        expr, at, rest = stack.expr, stack.at, stack.rest
        if isinstance(expr, Literal):
            return [self._push(expr, at + 1, rest)] if expr.text[at] == char else []
        if isinstance(expr, CharClass):
            return [self._push(EMPTY, 0, rest)] if contains(expr, char) else []
        assert isinstance(expr, Until)
        automaton = aho_corasick(tuple(marker for marker, _ in expr.on))
        state = at or automaton.state(expr.prefix)
        to = automaton.step(state, char)
        if isinstance(to, int):
            return [self._push(expr if to or not expr.prefix else Until(expr.on, expr.open), to, rest)]
        then = dict(expr.on)[to]
        return [] if then is None else [self._push(then, 0, rest)]


def matches(grammar_ir: GrammarIR, text: str) -> bool:
    """Whether the whole text fits."""
    matcher = Matcher(grammar_ir)
    return matcher.feed(text) and matcher.accepting


def residual(grammar_ir: GrammarIR, prefix: str) -> GrammarIR:
    """The grammar of the possible rests after `prefix`: it matches nothing if that does not match."""
    matcher = Matcher(grammar_ir)
    matcher.feed(prefix)
    return matcher.residual()


def _reads(stack: Stack) -> bool:
    expr = stack.expr
    return isinstance(expr, CharClass | Until) or (isinstance(expr, Literal) and stack.at < len(expr.text))


def _rest_of(expr: Expr, at: int) -> Expr:
    if isinstance(expr, Literal):
        return Literal(expr.text[at:])
    if isinstance(expr, Sequence):
        return sequence(*expr.parts[at:])
    if isinstance(expr, Repeat):
        maximum = None if expr.maximum is None else expr.maximum - at
        return repeat(expr.expr, max(0, expr.minimum - at), maximum)
    if isinstance(expr, Dfa) and at:
        return Dfa(expr.transitions, expr.ends, at - 1)
    if isinstance(expr, Until) and at:
        prefix = aho_corasick(tuple(marker for marker, _ in expr.on)).prefixes[at]
        return Until(expr.on, expr.open, prefix)
    return expr
