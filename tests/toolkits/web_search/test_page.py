"""Pages of numbered lines: made of text, of results, of matches; shown a window at a time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ToolError
from antiphon.toolkits.web_search.display import VIEW_CHARS, display, shown_lines
from antiphon.toolkits.web_search.page import (
    MATCHES,
    PAGE_CHARS,
    UNREAD,
    WIDTH,
    Link,
    SearchHit,
    WebPage,
    matches_page,
    results_page,
    text_page,
    wrap,
)

URL = "https://example.org/a"


@given(st.text(st.characters(exclude_characters="\n")))
def test_wrapping_keeps_every_word(line: str) -> None:
    pieces = list(wrap(line))
    assert all(len(piece) <= WIDTH for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(line.split())


def test_lines_break_between_words() -> None:
    assert list(wrap("word " * 20 + "end")) == [("word " * 16).strip(), "word " * 4 + "end"]
    assert list(wrap("x" * 100)) == ["x" * 80, "x" * 20]


def test_results_are_links_in_their_order() -> None:
    page = results_page(
        "choirs",
        [SearchHit("A 【1†b†c】", "https://a.org/x", "of\n a"), SearchHit("", "https://b.org")],
        "Hello.",
    )
    assert list(page.lines) == [
        "", "URL:", "# Search Results", "", "  * 【0†A 〖1‡b‡c〗†a.org】 of a", "  * 【1†https://b.org†b.org】", "", "Hello.",
    ]  # fmt: skip
    assert page.links == [Link("https://a.org/x"), Link("https://b.org")]


def test_a_search_may_find_nothing() -> None:
    assert results_page("x", [], "").lines[-1] == "Nothing was found."


def test_a_text_is_shown_as_it_is() -> None:
    page = text_page(URL, "a\r\n\n\tb 【")
    assert list(page.lines) == ["", f"URL: {URL}", "a", "", "    b 〖"]
    assert text_page(URL, "word\n" * PAGE_CHARS).lines[-1] == UNREAD


def test_matches_are_links_to_their_lines() -> None:
    page = WebPage("T", ["one", "two 【3†Three†x.org】", "four", "five", "six", "THREE"], url=URL)
    found = matches_page(page, "  three ")
    assert list(found.lines) == [
        "# 【0†match at L1】",
        "two Three",
        "four",
        "five",
        "six",
        "",
        "# 【1†match at L5】",
        "THREE",
    ]
    assert found.links == [Link(URL, 1), Link(URL, 5)]
    assert found.url is None


def test_a_match_may_go_over_lines_and_links() -> None:
    page = WebPage("T", ["x", "hello 【0†big", "world†x.org】 end"], url=URL)
    assert matches_page(page, "hello big world end").links == [Link(URL, 1)]


def test_no_match_is_said() -> None:
    assert list(matches_page(WebPage("T", ["x"], url=URL), "y").lines) == [
        "No `find` results for pattern: `y`"
    ]


@given(
    st.lists(st.text("aİß 【0†】", max_size=8), min_size=1, max_size=200),
    st.text("aİß", min_size=1, max_size=3),
)
def test_every_match_is_a_line_of_the_page(lines: list[str], pattern: str) -> None:
    found = matches_page(WebPage("T", lines, url=URL), pattern)
    places = [link.line for link in found.links]
    assert places == sorted(set(places))
    assert len(places) <= MATCHES
    assert all(0 <= place < len(lines) for place in places)


@given(st.integers(1, 300), st.integers(0, 400), st.none() | st.integers(0, 400))
def test_a_display_is_a_window_of_bounded_size(total: int, first: int, count: int | None) -> None:
    page = WebPage(
        "T" * 5000, [f"line {number} " + "x" * 60 for number in range(total)], url="https://" + "x" * 5000
    )
    if first >= total:
        with pytest.raises(ToolError, match=f"There is no line {first}"):
            display(page, 3, first, count)
        return
    text = display(page, 3, first, count)
    shown = re.findall(r"^L(\d+): line (\d+)", text, re.MULTILINE)
    assert [int(number) for number, _ in shown] == list(range(first, first + len(shown)))
    assert all(number == line for number, line in shown)
    assert 1 <= len(shown) <= (count or total)
    assert f"**viewing lines [{first} - {first + len(shown) - 1}] of {total - 1}**" in text
    assert text.startswith("[3] T")
    assert len(text) <= VIEW_CHARS + 1500


def test_the_lines_of_a_display_can_be_read_again() -> None:
    page = results_page("q", [SearchHit("A", "https://a.org", "why")], "")
    assert shown_lines(display(page, 0)) == page.lines
