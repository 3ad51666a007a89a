"""Forms that could be read in too many ways: they become machines that read the same, or are refused by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import RegexOptions, validator_for

from antiphon.constrain import gbnf
from antiphon.constrain.ambiguity import disambiguated
from antiphon.constrain.analysis import length
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.compile import OutputRequirements, compile_constraint
from antiphon.constrain.dfa import dfa_of
from antiphon.constrain.gbnf_parser import parse_gbnf
from antiphon.constrain.grammar_ir import (
    EMPTY,
    CharClass,
    Dfa,
    Expr,
    GrammarIR,
    Literal,
    Repeat,
    alternation,
    char_class,
    repeat,
    sequence,
)
from antiphon.constrain.json_schema import compile_schema
from antiphon.constrain.matcher import Matcher, matches, residual
from antiphon.constrain.regex import UnsupportedRegexError, client_regex, matching, searching
from antiphon.core.constraint import JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.turn import Function
from antiphon.dialects.registry import find
from tests.constrain.sampler import samples
from tests.search import share

letters = st.sampled_from([Literal("a"), Literal("b"), Literal("ab"), char_class("ab"), char_class("bc")])
counts = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3))


def bounds(drawn: tuple[int, int | None]) -> tuple[int, int | None]:
    """The least, and how many more there may be → the least and the most."""
    least, more = drawn
    return least, None if more is None else least + more


def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    parts = st.lists(inner, min_size=1, max_size=3)
    counted = st.tuples(inner, counts).map(lambda drawn: repeat(drawn[0], *bounds(drawn[1])))
    return st.one_of(
        parts.map(lambda some: sequence(*some)), parts.map(lambda some: alternation(*some)), counted
    )


exprs = st.recursive(st.one_of(letters, st.just(EMPTY)), grown, max_leaves=6)
texts = st.text("abc", max_size=8)


@given(exprs, texts)
def test_a_machine_reads_what_its_form_reads(expr: Expr, text: str) -> None:
    dfa = dfa_of(expr, WorkBudget())

    assert dfa is not None
    assert matches(GrammarIR(dfa), text) == matches(GrammarIR(expr), text)


@given(exprs, texts)
def test_a_machine_has_one_way_to_read_a_text(expr: Expr, text: str) -> None:
    dfa = dfa_of(expr, WorkBudget())
    assert dfa is not None
    matcher = Matcher(GrammarIR(dfa))
    for char in text:
        following = [top for top in matcher.tops if any(a <= ord(char) <= b for a, b in ranges(top.expr))]
        assert len(following) <= 1
        if not matcher.feed(char):
            break


def ranges(expr: Expr) -> Any:
    assert isinstance(expr, CharClass)
    return expr.ranges


@given(exprs, texts, st.integers(0, 8))
def test_what_may_follow_in_a_machine(expr: Expr, text: str, at: int) -> None:
    dfa = dfa_of(expr, WorkBudget())
    assert dfa is not None
    left = residual(GrammarIR(dfa), text[:at])

    assert matches(left, text[at:]) == matches(GrammarIR(expr), text)


@given(counts, counts, st.integers(0, 14))
def test_counts_of_counts_are_counts(inner: Any, outer: Any, times: int) -> None:
    plain = Repeat(Repeat(Literal("a"), *bounds(inner)), *bounds(outer))
    counted = repeat(repeat("a", *bounds(inner)), *bounds(outer))

    assert matches(GrammarIR(counted), "a" * times) == matches(GrammarIR(plain), "a" * times)


@given(exprs, texts)
def test_lengths_hold_for_machines(expr: Expr, text: str) -> None:
    dfa = dfa_of(expr, WorkBudget())
    assert dfa is not None
    least, most = length(dfa)

    if matches(GrammarIR(expr), text):
        assert least <= len(text)
        assert most is None or len(text) <= most


HARD = [
    r"(([a-z]?){30}){30}",
    r"([a-z]?b?){30}",
    r"([a-z]?[b-z]?[c-z]?){30}",
    r"([a-z]+ ?){1,30}",
    r"([a-z]+ ?){5,30}",
    r"(a|aa|aaa){30}",
    r"([0-9]{1,3},?){1,50}",
    r"[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*",
    r"[a-z]?" * 30,
    r"([a-z]{1,9}-?){0,9}",
    r"((a?){9}|(b?){9}){9}",
]


@pytest.mark.parametrize("pattern", share(HARD))
def test_hard_patterns_are_made_easy(pattern: str) -> None:
    expr = matching(pattern, WorkBudget())
    # In linear time, for any pattern.
    found = validator_for({"pattern": f"^(?:{pattern})$"}, pattern_options=RegexOptions())

    assert disambiguated(expr, {}, WorkBudget()) == expr
    assert all(found.is_valid(text) for text in samples(GrammarIR(expr), 20))
    for text in ["", "a", "aa", "ab", "ab ab", "abc-d", "12,3", "a" * 31, "a  b", "-", "A", "ab" * 40]:
        assert matches(GrammarIR(expr), text) == found.is_valid(text)


@pytest.mark.parametrize("pattern", share([r"((a?b?c?){40}d?){40}", r"(([a-z]{1,50} ?){1,50}x?){0,50}"]))
def test_patterns_that_are_too_hard_are_refused(pattern: str) -> None:
    for read_pattern in (matching, searching):
        with pytest.raises(UnsupportedRegexError, match="too many ways"):
            read_pattern(pattern, WorkBudget())
    with pytest.raises(RequestError, match="too many ways"):
        client_regex(pattern, WorkBudget())

    schema = {"type": "string", "pattern": pattern}
    assert compile_schema(schema, WorkBudget())[1] == [
        ("", "pattern: parts that can be read in too many ways cannot be enforced")
    ]


@pytest.mark.parametrize("pattern", [r"[a-z]{1,500}", r"(cat|car){100}", r"a*b*", r"(\w+\.)*\w+", r"^a.*b"])
def test_easy_patterns_stay_as_they_are(pattern: str) -> None:
    assert "machine" not in gbnf.write(GrammarIR(matching(pattern.strip("^"), WorkBudget()))).text


# Grammars of clients

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
SUMS = r"""
root ::= term | term "+" root | term "-" root
term ::= "(" root ")" | [0-9]+
"""
ITEMS = 'root ::= ("- " [^\\n]+ "\\n"){1,50}'
WORDS = 'root ::= (word " "?){1,30}\nword ::= [a-z]+'


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (JSON, ['{"a": [1, -2.5e3, {"b": null}]}', "{ }"], ['{"a"}', "[1]"]),
        (ARITHMETIC, ["a1 = 3\n", "(a +2) *3 = b\n(1)=1\n"], ["a =", "1+=2\n"]),
        (SUMS, ["1+2-(3+(4))", "((((1))))"], ["1+", "(1"]),
        (ITEMS, ["- a\n- b c\n"], ["- a", "a\n"]),
        (WORDS, ["ab", "ab cd ef ", "a"], ["", " a", "a  b", "A"]),
    ],
)
def test_grammars_that_people_write_are_taken(grammar: str, good: list[str], bad: list[str]) -> None:
    rules: dict[str, Expr] = {}
    grammar_ir = GrammarIR(parse_gbnf(grammar, rules, WorkBudget()), rules)

    assert all(matches(grammar_ir, text) for text in good)
    assert not any(matches(grammar_ir, text) for text in bad)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('root ::= (("a"? "b"? "c"?){40} "d"?){40}', "too many ways"),
        ('root ::= (list " "?){1,30}\nlist ::= [a-z] list | [a-z]', "too many ways"),
        ('root ::= "a" root root | "a"', "'root'"),
        ('root ::= "(" a ")x" | "(" b ")y" | "1"\na ::= root\nb ::= root', "'root'"),
    ],
)
def test_grammars_that_would_stop_an_engine_are_refused(grammar: str, why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        parse_gbnf(grammar, {}, WorkBudget())
    assert refused.value.param == "format"


def test_a_machine_is_made_of_rules_that_are_no_circle() -> None:
    rules: dict[str, Expr] = {}
    start = parse_gbnf(WORDS, rules, WorkBudget())

    assert isinstance(rules["client root"], Dfa)
    assert matches(GrammarIR(start, rules), "one two three")


# Schemas that hold themselves


def sums(*, first: bool) -> dict[str, Any]:
    """Two kinds of sums, distinguished by a constant that comes first or last."""

    def one(name: str) -> dict[str, Any]:
        ends = {"left": {"$ref": "#/$defs/sum"}, "right": {"$ref": "#/$defs/sum"}}
        kind = {"kind": {"const": name}}
        members = {**kind, **ends} if first else {**ends, **kind}
        return {
            "type": "object",
            "properties": members,
            "required": list(members),
            "additionalProperties": False,
        }

    return {
        "$ref": "#/$defs/sum",
        "$defs": {"sum": {"anyOf": [one("plus"), one("minus"), {"type": "integer"}]}},
    }


def test_alternatives_that_hold_themselves_are_enforced_if_they_begin_apart() -> None:
    compiled = compile_constraint(
        OutputRequirements(format=JsonSchema(sums(first=True))), find("plain").grammar
    )

    assert compiled.grammar_ir is not None
    assert matches(
        compiled.grammar_ir, '{"kind":"plus","left":1,"right":{"kind":"minus","left":2,"right":3}}'
    )


def test_alternatives_that_hold_themselves_and_begin_alike_are_not_enforced() -> None:
    hard = sums(first=False)
    with pytest.raises(RequestError, match=r"/\$defs/sum: recursive alternatives begin with the same text"):
        compile_constraint(OutputRequirements(format=JsonSchema(hard, strict=True)), find("plain").grammar)
    holding = {"type": "object", "properties": {"a": {"$ref": "#/$defs/sum"}}, "$defs": hard["$defs"]}
    with pytest.raises(RequestError, match="begin with the same text") as refused:
        compile_constraint(
            OutputRequirements((Function("f", None, holding, True, "tools[3]"),)), find("hermes").grammar
        )
    assert refused.value.param == "tools[3]"

    compiled = compile_constraint(
        OutputRequirements(format=JsonSchema(hard, strict=False)), find("plain").grammar
    )
    assert [each.pointer for each in compiled.unenforced] == ["/$defs/sum"]
    assert compiled.grammar_ir is not None
    assert matches(compiled.grammar_ir, '{"any": "thing"}')
    assert not matches(compiled.grammar_ir, "no JSON")


def test_what_is_counted_is_written_once() -> None:
    counted = repeat(sequence(repeat(char_class("ab"), 0, 400), "c"), 0, 400)
    lines = gbnf.write(GrammarIR(counted)).text.splitlines()

    assert lines == ['each-0 ::= [a-b]{0,400} "c"', "root ::= each-0{0,400}"]
