"""The scanner accepts what JSON is, stops where the value ends, and does so however it is cut."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.json_scanner import MAX_DEPTH, JsonScanner

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def scan(pieces: list[str]) -> tuple[JsonScanner, str, str]:
    """The scanner, the text of the value, and what came after it."""
    scanner, out, rest = JsonScanner(), list[str](), ""
    for piece in pieces:
        end = 0 if rest or scanner.done or scanner.broken else scanner.feed(piece, 0, out)
        rest += piece[end:]
    scanner.finish()
    return scanner, "".join(out), rest


@given(values, st.sampled_from(["", " ", "}", "\n</tool_call>", ",x"]), st.booleans(), st.booleans())
def test_passes_a_value_through_and_stops_after_it(
    value: object, after: str, escaped: bool, spread: bool
) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=2 if spread else None)
    if text[-1].isdigit() and after == "":
        after = " "

    for pieces in ([text + after], list(text + after)):
        scanner, out, rest = scan(pieces)

        assert scanner.done
        assert out == text
        assert rest == after


@given(st.text('{}[]",:0123456789.eE+-truefalsn \\u\n', max_size=30))
def test_agrees_with_a_real_parser(text: str) -> None:
    scanner, out, rest = scan(list(text))
    whole = scanner.done and not rest.strip()

    try:
        json.loads(text, strict=False)
        valid = True
    except ValueError:
        valid = False

    assert whole == valid
    if whole:
        json.loads(out)


@given(st.text('{}[]",:01.e-tru\\un\n', max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_does_not_depend_on_the_cuts(text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]

    results = [scan(cut) for cut in ([text], pieces, list(text))]

    assert len({(s.done, s.broken, out, rest) for s, out, rest in results}) == 1


def test_escapes_control_characters_in_strings() -> None:
    scanner, out, _ = scan(list('{"a": "x\n\ty\x01"}'))

    assert scanner.done
    assert out == '{"a": "x\\n\\ty\\u0001"}'


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r'["\ud83d\ude00"]', "\U0001f600"),
        (r'["\ud83d"]', "\ufffd"),
        (r'["\ude00!"]', "\ufffd!"),
        (r'["\ud83dx\n"]', "\ufffdx\n"),
        (r'["\ud83d\ud83d\ude00"]', "\ufffd\U0001f600"),
        (r'["\ud83d\n\u00e9"]', "\ufffd\n\xe9"),
        (r'["\\ud83d"]', "\\ud83d"),
    ],
)
def test_half_a_character_is_replaced(text: str, read: str) -> None:
    for pieces in ([text], list(text)):
        scanner, out, _ = scan(pieces)
        assert scanner.done
        assert json.loads(out) == [read]
        assert ("ud83d\\ude00" in out) == ("ud83d\\ude00" in text)  # pairs stay as they are


@pytest.mark.parametrize("cut", ["\\", "\\u", "\\ud8", r"\ud83d", r"\ud83d\ude0"])
def test_of_an_escape_that_is_cut_nothing_is_passed_through(cut: str) -> None:
    for pieces in (['["a' + cut], ['["a', *cut]):
        assert scan(pieces)[1] == '["a'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a" 1}', "unexpected '1'"),
        ('["\\q"]', "an unknown escape in a string"),
        ('["\\u12g4"]', "a broken \\u escape"),
        ("[-]", "a broken number"),
        ("[trux]", "an unknown literal"),
        ("[" * (MAX_DEPTH + 1), "nested too deeply"),
        ("<", "unexpected '<'"),
    ],
)
def test_says_what_is_broken(text: str, why: str) -> None:
    scanner, out, rest = scan([text])
    assert scanner.broken == why
    assert out + rest == text


def test_nests_as_deep_as_the_limit() -> None:
    assert scan(["[" * MAX_DEPTH + "]" * MAX_DEPTH])[0].done
