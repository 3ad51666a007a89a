"""Patterns are split into literals, and the parts between them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.response_template.patterns import (
    MAX_PATTERN,
    PatternPart,
    UnsupportedPatternError,
    capture_between,
    literal,
    parse_pattern,
)

NAMED = parse_pattern(r'<call\b[^>]*? name="(?P<name>\w+)">')[0]


def short(pattern: str) -> list[list[str]]:
    """The alternatives: literals as they are, `_` for space, `?` for other text, `^`, and captures by name."""
    signs = {PatternPart.SPACE: "_", PatternPart.OTHER: "?", PatternPart.START: "^"}
    return [
        [signs.get(piece.part, piece.text) for piece in alternative] for alternative in parse_pattern(pattern)
    ]


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        ("", [[]]),
        (r"<a>\n", [["<a>\n"]]),
        (r"\s*<a>\s+<b>$", [["_", "<a>", "_", "<b>", "_"]]),
        (r"\n?</a>[ \t]*", [["_", "</a>", "_"]]),
        (r"</a>|<\|b\|>|\Z", [["</a>"], ["<|b|>"], ["_"]]),
        (r"(?:^|<think>\s*)", [["^"], ["<think>", "_"]]),
        (r"(?:<a>\s*)?<b>", [["<a>", "_", "<b>"], ["<b>"]]),
        (r"to=(user|all)<x?>", [["to=user<x>"], ["to=user<>"], ["to=all<x>"], ["to=all<>"]]),
        (r"(?:\n\n)*<a>", [["_", "<a>"]]),
        (r"<f=(?P<name>[^>\n]+)>", [["<f=", "name", ">"]]),
        (r"<f .*?\bx=\d{1,3}>", [["<f ", "?", "?", "x=", "?", ">"]]),
        (r"a(?=<b>|$)", [["a"]]),
        (r"[)\]]", [["?"]]),
    ],
)
def test_parses(pattern: str, pieces: list[list[str]]) -> None:
    assert short(pattern) == pieces


@pytest.mark.parametrize(
    "pattern",
    ["(", "a)", "a+", "(?:ab)*", r"(?:\w+)+", r"(?P<x>(?:\w+)+)", "(?i)a", "(?!a)b", r"(a)\1", r"\p", "a" * (MAX_PATTERN + 1),
     "(?:" * 400 + ")" * 400, "(?:a|b)" * 6, "(?P<x>(?P<y>a))"],
)  # fmt: skip
def test_rejects(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        parse_pattern(pattern)


@given(st.text(max_size=20))
def test_an_escaped_text_is_a_literal(text: str) -> None:
    assert (
        parse_pattern(re.escape(text)) == [tuple(piece for piece in literal(text)[0] if text)]
        or text.isspace()
    )


@pytest.mark.filterwarnings("ignore")
@given(st.text(alphabet="ab<>|()[]?*+.^$\\swP=:{}", max_size=14))
def test_any_pattern_is_parsed_or_rejected(pattern: str) -> None:
    try:
        alternatives = parse_pattern(pattern)
    except UnsupportedPatternError:
        return
    for alternative in alternatives:
        re.compile("".join(piece.source for piece in alternative))


def test_a_group_is_found_between_markers() -> None:
    find = capture_between(NAMED, "<call", '">', "name")

    assert find(' id="1" name="f') == "f"
    assert find('er name="f') is None
    assert find(' name="f g') is None
    assert find(" " * 300 + ' name="f') is None


def test_a_search_that_could_take_long_is_rejected() -> None:
    with pytest.raises(UnsupportedPatternError, match="too many repetitions"):
        capture_between(parse_pattern(r"<.*.*.*.*(?P<x>.)>")[0], "<", ">", "x")
