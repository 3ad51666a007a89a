"""Numbers, patterns, markers in text and a client's own notations: each against what it must and must not let through."""

import copy
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.constrain import gbnf
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.compile import OutputRequirements, compile_constraint
from antiphon.constrain.gbnf_parser import parse_gbnf
from antiphon.constrain.grammar_ir import (
    EMPTY,
    Expr,
    GrammarIR,
    Literal,
    RuleReference,
    Until,
    alternation,
    char_class,
    repeat,
    sequence,
)
from antiphon.constrain.matcher import Matcher, matches, residual
from antiphon.constrain.numbers import integers, numbers
from antiphon.constrain.regex import UnsupportedRegexError, matching, searching
from antiphon.constrain.structural_tag_parser import parse_structural_tag
from antiphon.core.constraint import TagFormat
from antiphon.core.errors import RequestError
from antiphon.dialects.registry import find
from tests.constrain.sampler import samples

small = st.integers(-1200, 1200)
decimals = st.decimals(-20, 20, places=2)


def fits(expr: Expr, text: str) -> bool:
    return matches(GrammarIR(expr), text)


@given(st.none() | small, st.none() | small, small)
def test_integers_are_exactly_those_between_the_bounds(low: int | None, high: int | None, value: int) -> None:
    between = (low is None or low <= value) and (high is None or value <= high)
    assert fits(integers(low, high), str(value)) == between


@given(
    st.none() | decimals,
    st.none() | decimals,
    st.booleans(),
    st.booleans(),
    decimals | st.sampled_from([Decimal(0)]),
)
def test_numbers_are_exactly_those_between_the_bounds(
    low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool, value: Decimal
) -> None:
    above = low is None or low < value or (low == value and not open_low)
    below = high is None or value < high or (high == value and not open_high)
    written = f"{abs(value):f}" if value == 0 else f"{value:f}"
    assert fits(numbers(low, high, open_low, open_high), written) == (above and below)


PATTERNS = [
    "^abc$",
    "a+b*c?",
    "[a-c]{2,3}$",
    r"^\d{3}-\w+$",
    "^(a|bc)*$",
    r"^[^a-z]+$",
    r"^\s?\S\.$",
    "^(?:x|y){2}z",
    "a|^b|c$",
    r"^[\]\-\\]+$",
    "^(?P<name>q)$",
    "^a{2}$",
    r"\u0041\x42",
    "^$",
    "",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_they_mean_elsewhere(pattern: str) -> None:
    found = re.compile(pattern, re.ASCII)
    texts = [*samples(GrammarIR(searching(pattern, WorkBudget())), 30)]
    assert all(found.search(text) for text in texts)
    for text in [
        "",
        "a",
        "abc",
        "b",
        "aa",
        "123-x",
        "ab",
        "cab",
        "xyz",
        "Z",
        "]",
        "q",
        "AB",
        "bca",
        " x.",
    ]:
        assert fits(searching(pattern, WorkBudget()), text) == bool(found.search(text))


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?<!a)b",
        r"\bword",
        r"(a)\1",
        "a++",
        "(^a)",
        "a{3,2}",
        "(a",
        "a)",
        "[z-a]",
        r"\p{L}",
        "*",
        "[a",
    ],
)
def test_patterns_that_are_no_regular_language_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedRegexError):
        matching(pattern, WorkBudget())


markers = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3, unique=True)


@given(markers, st.text("ab<", max_size=12))
def test_text_goes_up_to_the_first_marker(markers: list[str], text: str) -> None:
    ends = {marker: text.find(marker) for marker in markers if marker in text}
    first = min((at + len(marker) for marker, at in ends.items()), default=None)
    expr = Until(tuple((marker, EMPTY) for marker in markers))
    assert fits(expr, text) == (first == len(text))
    assert fits(Until(expr.on, open=True), text) == (first is None or first == len(text))


ROOM = GrammarIR(
    sequence("<a>", Until((("</a>", RuleReference("rest")), ("<b", None)))),
    {"rest": alternation(EMPTY, sequence(repeat(char_class("0-9"), 2, 3), RuleReference("rest")))},
)


@given(st.integers(0, 30), st.integers(0, 30))
def test_what_remains_is_what_may_follow(seed: int, cut: int) -> None:
    *_, text = samples(ROOM, seed + 1)
    begun = text[: min(cut, len(text))]
    assert matches(residual(ROOM, begun), text[len(begun) :])
    assert all(matches(ROOM, begun + more) for more in samples(residual(ROOM, begun), 3))


def test_a_matcher_dies_at_the_first_character_that_cannot_fit() -> None:
    matcher = Matcher(ROOM)
    assert matcher.feed("<a>x</a>1")
    assert not matcher.accepting
    assert not matcher.feed("x")
    assert not matcher.alive


def test_long_text_costs_no_more_per_character() -> None:
    matcher = Matcher(GrammarIR(Until((("</a>", EMPTY),))))
    assert matcher.feed("<")
    [top] = matcher.tops
    assert matcher.feed("<" * 50_000)
    assert matcher.tops[0] is top
    assert len(matcher.tops) == 1


GRAMMAR = r"""
# a comment
root  ::= item ("," item)* end?
item  ::= [a-c]+ | "\"" [^"\x41] "\"" | num{1,2}
num   ::= [0-9]
end   ::= "\n" | "\u00e9."
"""


def test_a_clients_grammar_is_read() -> None:
    rules: dict[str, Expr] = {}
    grammar_ir = GrammarIR(parse_gbnf(GRAMMAR, rules, WorkBudget()), rules)
    assert matches(grammar_ir, 'abc,"é",42\n')
    assert matches(grammar_ir, "7é.")
    assert not matches(grammar_ir, '"A"')
    assert not matches(grammar_ir, "123")


def test_what_is_written_is_read_as_the_same() -> None:
    rules: dict[str, Expr] = {}
    again = GrammarIR(parse_gbnf(gbnf.write(ROOM).text, rules, WorkBudget()), rules)
    for text in samples(ROOM, 40):
        assert matches(again, text)
    for text in samples(again, 40):
        assert matches(ROOM, text)


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "x ::= y",
        "root ::= (",
        "root ::= missing",
        "root ::= a{9999}",
        "root ::= *",
        'root ::= "\\uD800"',
        "a ;",
    ],
)
def test_a_broken_grammar_is_refused(grammar: str) -> None:
    with pytest.raises(RequestError):
        parse_gbnf(grammar, {}, WorkBudget())


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "begin": "<f=a>",
                "content": {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
                "end": "</f>",
            },
            {"begin": "<f=b>", "content": {"type": "any_text"}, "end": ["</f>", "</g>"]},
        ],
    },
}
OLDER = {"structures": [{"begin": "<f=a>", "schema": {"enum": [1, 2]}, "end": "</f>"}], "triggers": ["<f="]}
SEQUENCE = {
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "x"},
            {
                "type": "or",
                "elements": [
                    {"type": "regex", "pattern": "[0-9]+"},
                    {"type": "grammar", "grammar": 'root ::= "y"'},
                ],
            },
            {
                "type": "tags_with_separator",
                "separator": ",",
                "at_least_one": True,
                "tags": [
                    {
                        "type": "tag",
                        "begin": "(",
                        "content": {"type": "const_string", "value": "z"},
                        "end": ")",
                    }
                ],
            },
        ],
    }
}


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        (TAG, "free <f text <f=a>1</f> and <f=b>any</g>", True),
        (TAG, "<f=a>3</f>", False),
        (TAG, "<f=c>", False),
        (OLDER, "text <f=a>2</f> text", True),
        (OLDER, "text <f=a>2", False),
        (SEQUENCE, "x12(z),(z)", True),
        (SEQUENCE, "xy(z)", True),
        (SEQUENCE, "xy", False),
    ],
)
def test_structural_tags_are_read(spec: dict[str, Any], text: str, expected: bool) -> None:
    rules: dict[str, Expr] = {}
    expr, unenforced = parse_structural_tag(spec, rules, WorkBudget())
    assert unenforced == []
    assert matches(GrammarIR(expr, rules), text) == expected


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "missing required field `format`"),
        ({"format": {"type": "magic"}}, "Invalid value 'magic'"),
        ({"format": 3}, "Expected `object`"),
        ({"format": {"type": "tag", "begin": "x"}}, "missing required field `content`"),
        ({"format": {"type": "sequence", "elements": []}}, "length >= 1"),
        ({"format": {"type": "triggered_tags", "triggers": ["<"], "tags": []}}, "No tag begins with"),
        ({"structures": [{"begin": "<f>", "end": "</f>"}], "triggers": ["<f"]}, "field `schema`"),
    ],
)
def test_a_broken_structural_tag_is_refused(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_structural_tag(spec, {}, WorkBudget())
    assert told in raised.value.message
    assert raised.value.param == "format"


def test_a_structural_tag_may_not_be_nested_for_ever() -> None:
    for depth in (40, 5000):
        inner: dict[str, Any] = {"type": "any_text"}
        for _ in range(depth):
            inner = {"type": "or", "elements": [inner]}
        with pytest.raises(RequestError):
            parse_structural_tag({"format": inner}, {}, WorkBudget())


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a JSON value: what holds it, and under which key."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def refusal(tag: Any) -> RequestError | None:
    """Why a demand of this tag is refused, if it is."""
    try:
        compile_constraint(OutputRequirements(format=TagFormat(tag)), find("hermes").grammar)
    except RequestError as error:
        return error
    return None


JUNK = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from([[], {}, [[]], "<f="])
)


@given(st.sampled_from([TAG, OLDER, SEQUENCE]), st.lists(st.tuples(st.integers(0, 99), JUNK), max_size=3))
def test_a_structural_tag_is_read_or_refused(spec: Any, changes: list[tuple[int, Any]]) -> None:
    """With any change, and the message contains nothing internal."""
    broken = copy.deepcopy(spec)
    for number, junk in changes:
        found = list(places(broken))
        if found:
            holder, key = found[number % len(found)]
            holder[key] = copy.deepcopy(junk)
    refused = refusal(broken)
    assert refused is None or (refused.param == "format" and "Error" not in refused.message)


def test_literals_keep_every_character() -> None:
    text = 'a"b\\c\n[d]^-]é{日}\t\x00|'
    rules: dict[str, Expr] = {}
    again = parse_gbnf(gbnf.write(GrammarIR(sequence(text, char_class("]^-")))).text, rules, WorkBudget())
    assert matches(GrammarIR(again, rules), text + "]")
    assert not matches(GrammarIR(again, rules), text + "a")
    assert matches(GrammarIR(Literal(text)), text)
