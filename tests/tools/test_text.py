"""Excerpts keep the beginning and the end, for any pieces."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.tools.text import Excerpt

PIECES = st.lists(st.text(max_size=8), max_size=20)


@given(PIECES, st.integers(0, 30))
def test_an_excerpt_is_the_text_or_both_its_ends(pieces: list[str], limit: int) -> None:
    excerpt = Excerpt(limit)
    for piece in pieces:
        excerpt.write(piece)
    text = "".join(pieces)
    if len(text) <= limit:
        assert str(excerpt) == text
    else:
        head, tail = text[: limit // 2], text[len(text) - (limit - limit // 2) :]
        assert str(excerpt) == f"{head}\n[{len(text) - limit} characters are left out here]\n{tail}"


@given(PIECES)
def test_a_line_begins_a_line(pieces: list[str]) -> None:
    excerpt = Excerpt(1000)
    for piece in pieces:
        excerpt.write(piece)
    excerpt.write_line("end")
    text = "".join(pieces)
    assert str(excerpt) == (text if not text or text.endswith("\n") else f"{text}\n") + "end"


@given(PIECES, st.integers(0, 30))
def test_what_is_told_at_once_is_how_it_begins_whatever_follows(pieces: list[str], limit: int) -> None:
    told: list[str] = []
    excerpt = Excerpt(limit, told.append)
    for piece in pieces:
        excerpt.write(piece)
        assert str(excerpt).startswith("".join(told))
    assert "".join(told) == "".join(pieces)[: limit // 2]
