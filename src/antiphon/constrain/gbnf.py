"""Grammar IR → GBNF, the grammars of llama.cpp and xgrammar.

Expressions are written in place. Text up to a marker, DFA states and counted
expressions become rules: llama.cpp writes repetitions out, and refuses a
grammar in which that multiplies.
"""

from antiphon.constrain.aho_corasick import aho_corasick
from antiphon.constrain.counts import nested
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
    char_class,
    merged_ranges,
    without,
)
from antiphon.constrain.triggers import first_characters, from_trigger_start
from antiphon.core.constraint import Gbnf

EXPANDED_COUNT = 2
"""Counts of at least this number are expanded by engines."""

_PLAIN = char_class(" !#-,.-Z_-~/:;<=>@")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "\\": r"\\"}


def write(grammar_ir: GrammarIR, triggers: tuple[str, ...] = ()) -> Gbnf:
    """The grammar as GBNF; with triggers, one that applies from these on.

    llama.cpp looks for triggers in generated text: a token that contains the end of one, and more that does
    not match, would be an error. So it starts where a trigger may begin, and continues from there. Triggers
    are longer than the tokens of text, so none contains a whole trigger and more.
    """
    if not triggers:
        return Gbnf(_GbnfWriter(grammar_ir).text)
    return Gbnf(_GbnfWriter(from_trigger_start(grammar_ir, triggers)).text, first_characters(triggers))


class _GbnfWriter:
    """Writes one grammar."""

    def __init__(self, grammar_ir: GrammarIR) -> None:
        self._names: dict[str, str] = {}
        self._untils: dict[Until, str] = {}
        self._dfas: dict[Dfa, str] = {}
        self._counted: dict[Expr, str] = {}
        self._lines: list[str] = []
        self._rule("root", grammar_ir.start)
        for name, expr in grammar_ir.rules.items():
            self._rule(self._named(name), expr)
        self.text = "\n".join(self._lines) + "\n"

    def _rule(self, name: str, expr: Expr) -> None:
        self._lines.append(f"{name} ::= {self._options(expr)}")

    def _named(self, name: str) -> str:
        """A rule's name: letters, digits and dashes; each ends in a number, so that none is `root`."""
        if name not in self._names:
            letters = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
            self._names[name] = f"{letters}-{len(self._names)}"
        return self._names[name]

    def _options(self, expr: Expr) -> str:
        if isinstance(expr, Alternation):
            return " | ".join(map(self._parts, expr.options)) or "[^\\u0000-\\U0010FFFF]"
        return self._parts(expr)

    def _parts(self, expr: Expr) -> str:
        if isinstance(expr, Sequence):
            return " ".join(map(self._part, expr.parts))
        return self._part(expr)

    def _part(self, expr: Expr) -> str:  # noqa: PLR0911  # one for each type
        match expr:
            case Literal(text):
                return _quoted(text)
            case CharClass(ranges):
                return _class(ranges)
            case Repeat(inner, minimum, maximum):
                if (expansion := nested(expr)) is not expr:
                    return self._part(expansion)
                single = self._single if maximum is None and minimum < EXPANDED_COUNT else self._single_rule
                return f"{single(inner)}{_count(minimum, maximum)}"
            case RuleReference(name):
                return self._named(name)
            case Until():
                return self._until(expr)
            case Dfa():
                return self._dfa(expr)
            case _:
                return f"({self._options(expr)})"

    def _single(self, expr: Expr) -> str:
        """The expression in a form that a count may follow."""
        return (
            self._part(expr)
            if isinstance(expr, Literal | CharClass | RuleReference)
            else f"({self._options(expr)})"
        )

    def _single_rule(self, expr: Expr) -> str:
        """The same, short enough to be written out many times."""
        if isinstance(expr, Literal | CharClass | RuleReference):
            return self._part(expr)
        if expr not in self._counted:
            self._counted[expr] = f"each-{len(self._counted)}"
            self._rule(self._counted[expr], expr)
        return self._counted[expr]

    def _dfa(self, expr: Dfa) -> str:
        """The name of the rule for its first state; that of each state has its number added."""
        states = Dfa(expr.transitions, expr.ends)
        if states not in self._dfas:
            self._dfas[states] = f"machine-{len(self._dfas)}"
            for state, ways in enumerate(expr.transitions):
                options = [f"{self._part(read)} {self._dfas[states]}-{to}" for read, to in ways]
                options += ['""'] if state in expr.ends else []
                nothing = _class(())
                self._lines.append(f"{self._dfas[states]}-{state} ::= {' | '.join(options) or nothing}")
        return f"{self._dfas[states]}-{expr.start}"

    def _until(self, expr: Until) -> str:
        """The name of the rule for the text's beginning; that of each state has its number added."""
        if expr not in self._untils:
            self._untils[expr] = f"text-{len(self._untils)}"
            self._states(self._untils[expr], expr)
        state = aho_corasick(tuple(marker for marker, _ in expr.on)).state(expr.prefix)
        return f"{self._untils[expr]}-{state}"

    def _states(self, name: str, expr: Until) -> None:
        """A rule for each state: the characters that lead on, and where."""
        then = dict(expr.on)
        automaton = aho_corasick(tuple(then))
        for state in range(len(automaton.prefixes)):
            ways = automaton.transitions(state)
            options = [f"{_class(without(ANY_CHAR, ''.join(ways)).ranges)} {name}-0"]
            for to in {to for to in ways.values() if isinstance(to, int)}:
                letters = merged_ranges((ord(char), ord(char)) for char, way in ways.items() if way == to)
                options.append(f"{_class(letters)} {name}-{to}")
            for char, marker in ways.items():
                after = then[marker] if isinstance(marker, str) else None
                if after is not None:
                    options.append(f"{_quoted(char)} {self._part(after)}")
            if expr.open:
                options.append('""')
            self._lines.append(f"{name}-{state} ::= {' | '.join(options)}")


def _count(minimum: int, maximum: int | None) -> str:
    if maximum is None and minimum < 2:
        return "*+"[minimum]
    if (minimum, maximum) == (0, 1):
        return "?"
    return f"{{{minimum}}}" if minimum == maximum else f"{{{minimum},{'' if maximum is None else maximum}}}"


def _quoted(text: str) -> str:
    """A literal. Characters that are special in a class are not special here."""
    return f'"{"".join(char if char in "[]^-" else _char(char) for char in text)}"'


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    """`[a-z]`; nothing else is special there if all but letters and digits are written as codes."""
    if not ranges:
        return "[^\\u0000-\\U0010FFFF]"
    pieces = (_char(chr(a)) if a == b else f"{_char(chr(a))}-{_char(chr(b))}" for a, b in ranges)
    return f"[{''.join(pieces)}]"


def _char(char: str) -> str:
    """Codes have four or eight digits: after two, xgrammar would read further digits."""
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if any(low <= code <= high for low, high in _PLAIN.ranges) or (code > 0xBF and char.isalpha()):
        return char
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
