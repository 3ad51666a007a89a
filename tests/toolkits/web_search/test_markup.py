"""HTML becomes the lines that a reader would see, for any markup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.toolkits.web_search.markup import LINKS, html_page
from antiphon.toolkits.web_search.page import PAGE_CHARS, UNREAD, WIDTH

URL = "https://example.org/dir/page"
TAGS = [
    "html",
    "head",
    "title",
    "body",
    "div",
    "p",
    "a",
    "li",
    "ul",
    "pre",
    "sup",
    "table",
    "tr",
    "td",
    "script",
    "svg",
    "h1",
    "br",
    "img",
    "base",
]


def lines(html: str) -> list[str]:
    """What is shown below the URL, without blank lines."""
    return [line for line in html_page(URL, html).lines[2:] if line]


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>One\n  two</p><p>three", ["One two", "three"]),
        ("<h2>Head</h2>text", ["## Head", "text"]),
        ("<ul><li>a<li><p>b</p><li></ul>c", ["  * a", "  * b", "c"]),
        ("a<br>b<div>c</div>d", ["a", "b", "c", "d"]),
        ("<table><tr> <th>A <th>B<tr><td>1<td><b>2</b></table>", ["A | B", "1 | 2"]),
        ("<pre>def f():\n    return 1\n</pre>", ["def f():", "    return 1"]),
        ("10<sup>6</sup> H<sub>2</sub>O", ["10^{6} H_{2}O"]),
        ("<img alt='A cat'>sits<img>", ["[Image: A cat] sits"]),
        ("<dl><dt>t<dd>d", ["t", "    d"]),
        ("&lt;b&gt; &eacute; a < b", ["<b> é a < b"]),
        (
            "<script>no</script><style>no</style><nav>no</nav><svg><title>no</title></svg><div hidden>no</div>yes",
            ["yes"],
        ),
        ("a\u200bb\x07c\x00d", ["abcd"]),
    ],
)
def test_a_page_is_read_as_it_is_seen(html: str, shown: list[str]) -> None:
    assert lines(html) == shown


@pytest.mark.parametrize(
    ("html", "shown", "urls"),
    [
        ("<a href=other>a b</a>", "【0†a b】", ["https://example.org/dir/other"]),
        ("<a href='//x.org:81/'>a</a>", "【0†a†x.org:81】", ["https://x.org:81/"]),
        ("<a href=x>a</a> <a href=y>b</a> <a href=x#part>c</a>", "【0†a】 【1†b】 【0†c】", ["https://example.org/dir/x", "https://example.org/dir/y"]),
        ("<base href='https://b.org/d/'><a href=x>a</a>", "【0†a†b.org】", ["https://b.org/d/x"]),
        ("<a href=x><div>Card</div><p>Text</p></a>", "【0†Card Text】", ["https://example.org/dir/x"]),
        ("<a href=x>open <a href=y>again", "【0†open】 【1†again】", ["https://example.org/dir/x", "https://example.org/dir/y"]),
        ("<a href='#part'>a</a> <a href='javascript:f()'>b</a> <a>c</a> <a href='http://[x'>d</a> <a href=x> </a>", "a b c d", []),
        ("【7†fake†bank.org】 <a href=x>†b</a>", "〖7†fake†bank.org〗 【0†‡b】", ["https://example.org/dir/x"]),
    ],
)  # fmt: skip
def test_links_are_numbered_marks(html: str, shown: str, urls: list[str]) -> None:
    page = html_page(URL, html)
    assert lines(html) == [shown]
    assert [link.url for link in page.links] == urls


def test_a_link_around_much_text_leaves_it_text() -> None:
    shown = " ".join(lines(f"<a href=x>{'word ' * 100}</a>"))
    assert shown == "word " * 100 + "【0†link】"


def test_the_title_is_that_of_the_page_or_its_host() -> None:
    assert html_page(URL, "<title>A &amp;\n B</title><svg><title>no</title></svg>").title == "A & B"
    assert html_page(URL, "<p>no title").title == "example.org"


def test_a_page_without_anything_is_its_url() -> None:
    assert list(html_page(URL, "").lines) == ["", f"URL: {URL}"]


@pytest.mark.parametrize(
    "html",
    ["<p>word" * PAGE_CHARS, "<div>" * 5000 + "</p>" * 100_000, f"<base href='//{'h' * 1900}/'>" + "<a href=x>x</a>" * PAGE_CHARS],
    ids=["text", "depth", "marks"],
)  # fmt: skip
def test_what_is_too_much_is_not_read_to_the_end(html: str) -> None:
    page = html_page(URL, html)
    assert page.lines[-1] == UNREAD
    assert sum(map(len, page.lines)) < 2 * PAGE_CHARS


def test_only_so_many_links_can_be_opened() -> None:
    page = html_page(URL, "".join(f"<a href={number}>n{number}</a> " for number in range(LINKS + 1)))
    assert len(page.links) == LINKS
    assert page.lines[-1].endswith(f"】 n{LINKS}")


@given(
    st.lists(
        st.sampled_from(
            [f"<{tag}>" for tag in TAGS]
            + [f"</{tag}>" for tag in TAGS]
            + ["<a href=x>", "<p hidden>", "\n", "a", "【", "\ud800", "&", "<", "<!--"]
        )
    ).map("".join)
    | st.text()
)
def test_any_text_is_a_page(html: str) -> None:
    page = html_page(URL, html)
    assert page == html_page(URL, html)
    assert all(len(line) <= WIDTH and "\n" not in line for line in page.lines)
    assert page.title
