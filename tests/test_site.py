"""The documentation site: what it is built from. `make site` builds it, and fails at links that lead nowhere."""

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.http.app import ROUTES
from antiphon.http.openapi import document
from antiphon.option_sources import command
from tests.rows import every_row

ROOT = Path(__file__).parent.parent
SECTIONS = ["Start", "Tutorial", "How-to", "Reference", "Explanation"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    runpy.run_path(str(ROOT / "scripts" / "site"))["write"](folder)
    return folder


@pytest.fixture(scope="module")
def project(site: Path) -> Any:
    return tomllib.loads((site / "zensical.toml").read_text())["project"]


def named(entries: Any) -> Iterator[str]:
    """The pages of a navigation, in order."""
    match entries:
        case str():
            yield entries
        case list():
            for entry in entries:
                yield from named(entry)
        case dict():
            yield from named(list(entries.values()))


def test_every_page_has_one_place_in_the_navigation(site: Path, project: Any) -> None:
    pages = list(named(project["nav"]))
    docs = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}

    assert len(pages) == len(set(pages))
    assert [page for page in pages if not (site / "docs" / page).exists()] == []
    every_row([page for page in pages if page in docs], docs, "the navigation of docs/site.toml")


def test_the_navigation_is_sorted_by_what_pages_are_for(project: Any) -> None:
    assert [title for entry in project["nav"] for title in entry] == SECTIONS


def test_every_link_leads_to_a_page(site: Path) -> None:
    """Also those of files outside docs/, which are pages in the site."""
    links = [
        (path, target)
        for path in (site / "docs").rglob("*.md")
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text())
    ]

    assert len(links) > 500
    wrong = [
        f"{path.relative_to(site)}: {target}" for path, target in links if not (path.parent / target).exists()
    ]
    assert not wrong


def test_nothing_is_fetched_from_elsewhere(site: Path, project: Any) -> None:
    assert project["theme"]["font"] is False
    assert "extra_javascript" not in project
    for style in project["extra_css"]:
        assert "url(" not in (site / "docs" / style).read_text()


def test_every_route_is_in_the_reference(site: Path) -> None:
    """With the types of its bodies, each of which has its own place."""
    routes, types = ((site / "docs" / f"http-{name}.md").read_text() for name in ("routes", "types"))
    api = document(ROUTES)
    served = [f"{method.upper()} {path}" for path, methods in api["paths"].items() for method in methods]
    every_row(re.findall(r"^### `([^`]+)`", routes, re.MULTILINE), served, "http-routes.md")

    places = re.findall(r"^## .* \{ #([^ ]+) \}$", types, re.MULTILINE)
    linked = re.findall(r"\]\((?:http-types\.md)?#([^)]+)\)", routes + types)
    assert len(places) == len(set(places)) == len(api["components"]["schemas"])
    assert set(linked) <= set(places)


PAGES = [path for path in ROOT.glob("docs/howto/*.md") if "```toml" in path.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_configurations_of_the_pages_are_taken(page: Path, tmp_path: Path) -> None:
    for text in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        (tmp_path / "antiphon.toml").write_text(text)
        taken = []
        command(["--config", str(tmp_path / "antiphon.toml")], taken.append, None)(
            ["--config", str(tmp_path / "antiphon.toml")], exit_on_error=False
        )
        assert len(taken[0].models) == text.count("[[models]]")
