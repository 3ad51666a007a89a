"""The texts that fit a grammar, for tests that ask for many of one."""

from functools import lru_cache

from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.gbnf_parser import parse_gbnf
from antiphon.constrain.grammar_ir import Expr, GrammarIR
from antiphon.constrain.matcher import Matcher


class Language:
    """What `matches` says of a text, by one matcher: it remembers what it found out from text to text."""

    def __init__(self, grammar_ir: GrammarIR) -> None:
        self._matcher = Matcher(grammar_ir)
        self._begin = self._matcher.tops, self._matcher.accepting

    def __contains__(self, text: str) -> bool:
        self._matcher.tops, self._matcher.accepting = self._begin
        return self._matcher.feed(text) and self._matcher.accepting


@lru_cache(maxsize=8)
def language_of(gbnf: str) -> Language:
    """The texts that fit a grammar as engines are given it."""
    rules: dict[str, Expr] = {}
    return Language(GrammarIR(parse_gbnf(gbnf, rules, WorkBudget(10**9)), rules))
