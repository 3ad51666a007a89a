"""GBNF → grammar IR, so that a client's grammar can follow reasoning and be checked.

Recursive descent. Rules get a prefix against collisions. Token references (`<…>`) and grammars that would
stop llama.cpp (`ambiguity`) are refused; common prefixes of alternatives are factored out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from antiphon.constrain.ambiguity import AmbiguousError, ambiguous_recursion, disambiguated, references
from antiphon.constrain.analysis import counts_too_much_of_nothing, validate
from antiphon.constrain.budget import WorkBudget, number
from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
    CharClass,
    Expr,
    GrammarIR,
    RuleReference,
    alternation,
    merged_ranges,
    repeat,
    sequence,
    without,
)
from antiphon.constrain.grammar_ir import Sequence as Several
from antiphon.constrain.regex import MAX_GROUPS, QUANTIFIERS
from antiphon.core.errors import RequestError

_TOKEN = re.compile(
    r"""\s*+(?:\#[^\n]*+\s*+)*+(?:(?P<name>[A-Za-z0-9_-]+)(?P<defines>\s*::=)?|(?P<text>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<chars>\[(?:[^\]\\]|\\.)*\])|(?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?P<sign>[|()*+?.]))"""
)
_CHAR = re.compile(r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|([^\\])", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_gbnf(text: str, rules: dict[str, Expr], budget: WorkBudget) -> Expr:
    """The expression of the grammar's `root`; its rules are added to `rules`. Raises RequestError."""
    grammar_ir = read_gbnf(text, budget)
    if counts_too_much_of_nothing(grammar_ir):
        _refuse("it has a high count of what may be empty")
    rules.update(grammar_ir.rules)
    rules.update(_unambiguous(grammar_ir.rules, budget))
    return grammar_ir.start


def read_gbnf(text: str, budget: WorkBudget) -> GrammarIR:
    """The grammar as it is written, however ambiguous. Raises RequestError."""
    rules = {_name(name): expr for name, expr in _GbnfParser(text, budget).read().items()}
    if _name("root") not in rules:
        _refuse("it has no rule 'root'")
    missing = [ref for expr in rules.values() for ref in references(expr) if ref not in rules]
    if missing:
        _refuse(f"it has no rule '{missing[0].removeprefix(_PREFIX)}'")
    grammar_ir = GrammarIR(RuleReference(_name("root")), rules)
    validate(grammar_ir, "format")
    return grammar_ir


def _unambiguous(rules: Mapping[str, Expr], budget: WorkBudget) -> dict[str, Expr]:
    """The same rules, with few ways to read a text."""
    for name in ambiguous_recursion(rules, budget):
        rule = name.removeprefix(_PREFIX)
        _refuse(f"alternatives of its recursive rule '{rule}' begin with the same text")
    try:
        return {name: disambiguated(expr, rules, budget) for name, expr in rules.items()}
    except AmbiguousError as why:
        _refuse(f"it has {why}")


class _GbnfParser:
    """Parses one grammar."""

    def __init__(self, text: str, budget: WorkBudget) -> None:
        self._tokens = _tokens(text)
        self._budget = budget
        self._at = 0
        self._depth = 0

    def read(self) -> dict[str, Expr]:
        rules: dict[str, Expr] = {}
        while self._at < len(self._tokens):
            kind, name = self._next()
            if kind != "defines":
                _refuse(f"a rule was expected at '{name}'")
            rules[name] = self._options()
        return rules

    def _options(self) -> Expr:
        options = [self._sequence()]
        while self._peek() == ("sign", "|"):
            self._next()
            options.append(self._sequence())
        return _factored(options)

    def _sequence(self) -> Expr:
        parts: list[Expr] = []
        while (token := self._peek()) is not None and token[0] != "defines" and token[1] not in ("|", ")"):
            parts.append(self._counted(self._part()))
        return sequence(*parts)

    def _part(self) -> Expr:
        kind, text = self._next()
        if kind == "name":
            return RuleReference(_name(text))
        if kind == "text":
            return sequence("".join(_chars(text[1:-1])))
        if kind == "chars":
            return _class(text[1:-1])
        if text == ".":
            return ANY_CHAR
        if text != "(":
            _refuse(f"'{text}' has nothing before it")
        self._depth += 1
        if self._depth > MAX_GROUPS:
            _refuse("its parentheses are nested too deeply")
        expr = self._options()
        self._depth -= 1
        if self._peek() != ("sign", ")"):
            _refuse("a parenthesis is not closed")
        self._next()
        return expr

    def _counted(self, expr: Expr) -> Expr:
        while (token := self._peek()) is not None:
            if token[0] == "count":
                minimum, comma, maximum = token[1].strip("{} ").partition(",")
                low = number(minimum.strip())
                high = number(maximum.strip()) if maximum.strip() else None if comma else low
                if high is not None and high < low:
                    _refuse(f"{token[1]} is no count")
                expr = repeat(expr, *self._budget.within_reach(low, high))
            elif token[1] in QUANTIFIERS:
                expr = repeat(expr, *QUANTIFIERS[token[1]])
            else:
                break
            self._next()
        return expr

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        if token is None:
            _refuse("it ends in the middle of a rule")
        self._at += 1
        return token


def _tokens(text: str) -> list[tuple[str, str]]:
    """The tokens of the notation; defined names and used names are different kinds."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while match := _TOKEN.match(text, at):
        kind = str(match.lastgroup)
        tokens.append((kind, match["name"] if kind == "defines" else match[kind]))
        at = match.end()
    if re.sub(r"#[^\n]*", "", text[at:]).strip():
        _refuse(f"'{text[at : at + 20].strip()}' is not understood")
    return tokens


def _chars(text: str) -> list[str]:
    codes = []
    for two, four, eight, escaped, plain in _CHAR.findall(text):
        code = two or four or eight
        if code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF):
            _refuse(f"'{code}' is no character")
        codes.append(chr(int(code, 16)) if code else _ESCAPES.get(escaped, escaped) or plain)
    return codes


def _class(text: str) -> Expr:
    negated = text.startswith("^")
    parts = [match[0] for match in _CHAR.finditer(text[negated:])]
    chars = _chars(text[negated:])
    ranges, at = list[tuple[int, int]](), 0
    while at < len(chars):
        last = at + 2 if at + 2 < len(chars) and parts[at + 1] == "-" else at
        ranges.append((ord(chars[at]), ord(chars[last])))
        at = last + 1
    char_class = CharClass(merged_ranges((low, high) for low, high in ranges if low <= high))
    return without(ANY_CHAR, char_class) if negated else char_class


def _factored(options: Sequence[Expr]) -> Expr:
    """One of these, with common beginnings factored out."""
    rests: dict[Expr, dict[Expr, None]] = {}
    for option in options:
        first, *rest = option.parts if isinstance(option, Several) else (option,)
        rests.setdefault(first, {})[sequence(*rest)] = None
    return alternation(
        *(
            sequence(first, _factored([*tails]) if len(tails) > 1 else next(iter(tails)))
            for first, tails in rests.items()
        )
    )


_PREFIX = "client "


def _name(name: str) -> str:
    return _PREFIX + name


def _refuse(why: str) -> NoReturn:
    raise RequestError(f"This grammar cannot be used: {why}. Write it in llama.cpp's GBNF.", param="format")
