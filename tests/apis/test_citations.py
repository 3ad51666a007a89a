"""Marks in an answer are citations of what was shown; all else is text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.apis.citations import Citations
from antiphon.core.tool_result import CitablePage, ShownPages, ToolResult
from antiphon.toolkits.file_search.details import FileSearchDetails
from antiphon.toolkits.file_search.query import FileResult

HOME = CitablePage("https://a.example/", "Home")
FILE = FileResult("file-1", "a.md", 1.0, {}, "text")


def citations() -> Citations:
    found = Citations()
    results = (CitablePage("https://b.example/", "B", 5), CitablePage("https://c.example/", "C", 7))
    found.add(ToolResult("", shown=ShownPages(0, results)))
    found.add(ToolResult("", shown=ShownPages(1, (HOME,))))
    found.add(ToolResult("", FileSearchDetails(("q",), 0, (FILE,))))
    found.add(ToolResult("It failed.", failed=True))
    return found


@pytest.mark.parametrize(
    ("mark", "url"),
    [
        ("【1†L0】", HOME.url),
        ("【1†L8-L11】", HOME.url),
        ("【1†L8-11】", HOME.url),
        ("【1†source】", HOME.url),
        ("【0†L5】", "https://b.example/"),
        ("【0†L6-L9】", "https://b.example/"),
        ("【0†L7】", "https://c.example/"),
        ("【0†L99】", "https://c.example/"),
    ],
)
def test_a_mark_of_a_page_cites_it(mark: str, url: str) -> None:
    [cited] = citations().find(f"é👍 so {mark}.")
    assert (cited.url, f"é👍 so {mark}."[cited.start : cited.end]) == (url, mark)


@pytest.mark.parametrize(
    ("mark", "quote"),
    [
        ("【0†L6】", "more of B"),
        ("【0†L5-L6】", "B more of B"),
        ("【0†L5-6】", "B more of B"),
        ("【0†L8】", "C"),
        ("【0†L99】", "C"),
        ("【1†source】", "all"),
    ],
)
def test_what_was_shown_of_the_lines_is_quoted(mark: str, quote: str) -> None:
    found = Citations()
    results = (CitablePage("https://b.example/", "B", 5), CitablePage("https://c.example/", "C", 7))
    found.add(ToolResult("[0] Found\n\nL5: B\nL6: more of B\nL7: C\nL8: ", shown=ShownPages(0, results)))
    found.add(ToolResult("L0: all", shown=ShownPages(1, (HOME,))))
    assert [cited.quote for cited in found.find(mark)] == [quote]


@pytest.mark.parametrize(
    "text",
    ["【0†L4】", "【7†L1】", "【1†its history】", "【1】", "[1†L3]", "【1†L3", "【0:3†a.md】", "【9:0】", ""],
)
def test_all_else_is_text(text: str) -> None:
    assert citations().find(text) == []


@given(st.lists(st.sampled_from(["【1†L1】", "【0:0†a.md】", "【", "】", "†L1", "word ", "👍"]), max_size=20))
def test_citations_are_marks_in_their_order(pieces: list[str]) -> None:
    """Law: each is a mark of the text, none overlap, and earlier text changes only its position."""
    text = "".join(pieces)
    found = citations().find(text)
    assert {text[cited.start : cited.end] for cited in found} <= {"【1†L1】", "【0:0†a.md】"}
    assert all(one.end <= after.start for one, after in pairwise(found))
    moved = citations().find(f"x{text}")
    assert moved == [replace(c, start=c.start + 1, end=c.end + 1) for c in found]
