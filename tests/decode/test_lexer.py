"""The lexer finds the leftmost, then the longest marker, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.decode.lexer import MAX_SPACE, Lexer, MarkerMatch


def lex(markers: list[str], pieces: list[str]) -> list[str]:
    """The text as alternating plain text and markers, in brackets."""
    lexer, held, out = Lexer(markers), "", []
    for piece in pieces:
        held += piece
        while found := lexer.find(held):
            out.append(held[: found.start])
            held = held[found.start :]
            if not found.marker:
                break
            out.append(f"[{found.marker}]")
            held = held[len(found.marker) :]
        else:
            out.append(held)
            held = ""
    while found := lexer.find_final(held):
        out += [held[: found.start], f"[{found.marker}]"]
        held = held[found.end :]
    return list("".join([*out, held]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", None),
        ("a<b>c", MarkerMatch(1, 4, "<b>")),
        ("a<", MarkerMatch(1, 2, "")),
        ("a<b", MarkerMatch(1, 3, "")),
        ("a<c", None),
        ("<<b>", MarkerMatch(1, 4, "<b>")),
        ("", None),
    ],
)
def test_finds_a_marker_or_holds_its_beginning(text: str, found: MarkerMatch | None) -> None:
    assert Lexer(["<b>"]).find(text) == found


def test_waits_for_the_longer_of_two_markers() -> None:
    lexer = Lexer(["<b", "<b>"])

    assert lexer.find("<b") == MarkerMatch(0, 2, "")
    assert lexer.find("<b>") == MarkerMatch(0, 3, "<b>")
    assert lexer.find("<bc") == MarkerMatch(0, 2, "<b")
    assert lexer.find_final("<b") == MarkerMatch(0, 2, "<b")


def test_holds_nothing_without_markers() -> None:
    assert Lexer([]).find("<anything") is None
    assert Lexer([]).find_final("<anything") is None


@given(
    st.lists(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("ab<>", max_size=5), max_size=8),
)
def test_does_not_depend_on_the_cuts(markers: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)

    assert lex(markers, pieces) == lex(markers, [text]) == lex(markers, list(text))


def test_space_is_what_is_held_back_for_nothing_but_being_space() -> None:
    lexer = Lexer(["<a>", "\n\n!"])

    held = {
        text: lexer.space[text]
        for text in (" ", "\t ", "\n", "x", " x", "", " " * MAX_SPACE, " " * (MAX_SPACE + 1))
    }

    assert held == {text: text in (" ", "\t ", " " * MAX_SPACE) for text in held}
    assert not any(lexer.plain[text] for text in held if text not in ("x", " x"))
