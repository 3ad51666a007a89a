"""Schemas as agents send them are enforced whole, and so that every engine takes the grammar.

No model is needed: what is drawn from the grammar fits the schema, and xgrammar and the matcher read it.
"""

import json
from typing import Any

import pytest

from antiphon.constrain import gbnf, matcher
from antiphon.constrain.analysis import without_unused_rules
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.grammar_ir import Expr, GrammarIR, char_class, repeat, sequence
from antiphon.constrain.json_schema import compile_schema
from antiphon.constrain.matcher import matches
from antiphon.constrain.value_syntax import JsonSyntax
from tests.constrain.agent_schemas import AGENT_SCHEMAS, validator
from tests.constrain.language import Language, language_of
from tests.constrain.sampler import samples
from tests.constrain.xgrammar_alone import Grammars, xgrammar
from tests.search import CI, share

SAMPLES = 3 if CI else 10
MAX_TEXT = 150_000
"""Characters of a grammar."""
SHORT = 3000
"""Characters of a text that is walked in xgrammar: it takes 0.3 ms for each."""

with_xgrammar = pytest.mark.skipif(xgrammar() is None, reason="xgrammar is not installed")


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars()


def compiled(schema: Any, longest: int | None = None) -> GrammarIR:
    budget = WorkBudget() if longest is None else WorkBudget(longest=longest)
    schema_ir, unenforced = compile_schema(schema, budget)
    assert unenforced == []
    rules: dict[str, Expr] = {}
    expr = JsonSyntax(rules, "test", schema_ir.definitions).expr(schema_ir.node)
    return without_unused_rules(GrammarIR(expr, rules))


def test_there_are_two_hundred() -> None:
    assert len(AGENT_SCHEMAS) >= 200


@pytest.mark.parametrize("name", share(AGENT_SCHEMAS, 3))
def test_what_a_schema_lets_through_fits_it(name: str) -> None:
    schema = AGENT_SCHEMAS[name]
    grammar_ir = compiled(schema)
    written = gbnf.write(grammar_ir).text
    assert len(written) < MAX_TEXT
    check, language = validator(schema), language_of(written)
    for text in samples(grammar_ir, SAMPLES):
        check.validate(json.loads(text))
        assert text in language


@with_xgrammar
def test_xgrammar_reads_them_all(grammars: Grammars) -> None:
    wrong = {}
    for name, schema in AGENT_SCHEMAS.items():
        grammar_ir = compiled(schema)
        walked = grammars.gbnf(gbnf.write(grammar_ir).text)
        texts = [text for text in samples(grammar_ir, SAMPLES) if len(text) < SHORT]
        wrong[name] = [text for text in texts if not grammars.admits(walked, text)]
        wrong[name] += [text for text in texts if grammars.admits(walked, text + "}")]
    assert {name: texts for name, texts in wrong.items() if texts} == {}


COUNTS = (
    *((0, 501), (0, 1000), (499, 501), (501, 501), (1000, 1000), (7, 2500), (600, None), (0, 2000), (64, 65)),
    *((0, 4096), (0, 4097), (4096, 4097), (1, 5000)),
)


@pytest.mark.parametrize(("least", "most"), COUNTS)
def test_a_high_count_is_exact_however_it_is_written(least: int, most: int | None) -> None:
    counted = sequence("<", repeat(char_class("ab"), least, most), ">")
    written = gbnf.write(GrammarIR(counted)).text
    assert len(written) < 1500
    language = language_of(written)
    ends = [least, *([least + 1] if most is None else [(least + most) // 2, most])]
    assert all(f"<{'a' * count}>" in language for count in ends)
    past = [*([least - 1] if least else []), *([] if most is None else [most + 1, most + 40])]
    assert not any(f"<{'a' * count}>" in language for count in past)


def test_texts_are_read_to_their_end_however_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader remembers is forgotten from time to time."""
    monkeypatch.setattr(matcher, "MAX_REMEMBERED", 200)
    grammar_ir = compiled({"type": "array", "items": {"type": "string", "minLength": 800, "maxLength": 800}})
    language = Language(grammar_ir)
    assert all(json.dumps(["é" * 800] * count) in language for count in (1, 2, 3))


@with_xgrammar
@pytest.mark.parametrize(("least", "most"), COUNTS)
def test_xgrammar_counts_the_same(grammars: Grammars, least: int, most: int | None) -> None:
    written = grammars.gbnf(
        gbnf.write(GrammarIR(sequence("<", repeat(char_class("ab"), least, most), ">"))).text
    )
    tried = {least - 1, least, least + 1, *(() if most is None else (most - 1, most, most + 1))}
    for count in tried - {-1}:
        fits = least <= count and (most is None or count <= most)
        assert grammars.admits(written, f"<{'a' * count}>") == fits, count


def test_a_count_that_no_answer_reaches_costs_nothing() -> None:
    free = {"type": "array", "items": {"type": "string"}}
    bounded = {"type": "array", "items": {"type": "string", "maxLength": 5_000_000}, "maxItems": 700}
    assert compiled(bounded, longest=700) == compiled(free)
    assert matches(compiled(bounded), json.dumps(["x"] * 700))
    assert not matches(compiled(bounded), json.dumps(["x"] * 701))


def test_a_count_that_nothing_reaches_is_met() -> None:
    assert compiled({"type": "string", "maxLength": 10**400}) == compiled({"type": "string"})
    assert compiled({"type": "string", "pattern": f"^a{{0,{'9' * 5000}}}$"}) == compiled(
        {"type": "string", "pattern": "^a*$"}
    )
