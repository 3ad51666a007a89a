"""Grammars that apply from a trigger on: the text before it is free."""

from antiphon.constrain.grammar_ir import Expr, GrammarIR, Until, alternation, sequence
from antiphon.constrain.matcher import residual


def with_free_text_before(grammar_ir: GrammarIR, triggers: tuple[str, ...]) -> GrammarIR:
    """Free text up to a trigger, and from there on the grammar, which describes the trigger, too."""
    return GrammarIR(_until(grammar_ir, triggers), grammar_ir.rules)


def from_trigger_start(grammar_ir: GrammarIR, triggers: tuple[str, ...]) -> GrammarIR:
    """The same from the first character on that may begin a trigger."""
    until = _until(grammar_ir, triggers)
    ways: list[Expr] = [
        sequence(letter, Until(until.on, until.open, prefix=letter)) for letter in first_characters(triggers)
    ]
    return GrammarIR(alternation(*ways), grammar_ir.rules)


def first_characters(triggers: tuple[str, ...]) -> tuple[str, ...]:
    """The characters that a trigger may begin with."""
    return tuple(sorted({trigger[0] for trigger in triggers}))


def _until(grammar_ir: GrammarIR, triggers: tuple[str, ...]) -> Until:
    return Until(tuple((trigger, residual(grammar_ir, trigger).start) for trigger in triggers), open=True)
