"""A folder of pages is searched, and read, as the web is."""

from pathlib import Path

import pytest

from antiphon.core.errors import ToolError
from antiphon.toolkits.web_search.folder import FolderPages
from antiphon.tools.web.domains import Domains


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "a.example/index.html": "<title>Choirs</title><p>An antiphon is sung by two choirs.</p>",
        "a.example/history/old page.md": "Ambrose of Milan brought the antiphon to the west. The antiphon is old.",
        "b.example/cats.txt": "Cats sleep.",
        "b.example/image.png": "antiphon",
        "loose.html": "antiphon",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "b.example" / "link.html").symlink_to("/etc/hostname")
    return tmp_path


async def test_the_best_pages_come_first(folder: Path) -> None:
    pages = FolderPages(folder)
    found = await pages.search("the antiphon of Ambrose", 5, Domains())
    assert [result.url for result in found] == [
        "https://a.example/history/old%20page.md",
        "https://a.example/",
    ]
    assert found[0].snippet.startswith("Ambrose of Milan")
    assert found[1].title == "Choirs"
    assert await pages.search("nothing that is there", 5, Domains(("b.example",))) == []
    assert [each.url for each in await pages.search("antiphon", 1, Domains())] == [found[0].url]


@pytest.mark.parametrize(
    "url", ["https://a.example/", "http://a.example", "a.example/index.html", "https://a.example/?x=1#y"]
)
async def test_pages_are_read_by_their_urls(folder: Path, url: str) -> None:
    document = await FolderPages(folder).fetch(url, Domains())
    assert (document.html, "two choirs" in document.text) == (True, True)


@pytest.mark.parametrize(
    "url",
    [
        "https://b.example/image.png",
        "https://b.example/link.html",
        "https://a.example/../../etc/hostname",
        "https://loose.html/",
    ],
)
async def test_nothing_else_is_read(folder: Path, url: str) -> None:
    with pytest.raises(ToolError, match="This page does not exist here"):
        await FolderPages(folder).fetch(url, Domains())


async def test_domains_hold(folder: Path) -> None:
    with pytest.raises(ToolError, match="not among the domains"):
        await FolderPages(folder).fetch("https://b.example/cats.txt", Domains(("a.example",)))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="not a folder"):
        FolderPages(tmp_path / "none")
