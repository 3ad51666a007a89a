"""Parts that are found by name: those that are not there are told from those that are broken."""

from pathlib import Path

import pytest

from antiphon.core.modules import find_part

SOURCES = {
    "found_part/__init__.py": "",
    "found_part/right.py": "PART = 7",
    "found_part/empty.py": "",
    "found_part/slip.py": "PART = = 7",
    "found_part/raises.py": "raise RuntimeError('no disk')",
    "found_part/imports.py": "import a_module_that_nobody_has",
    "broken_part/__init__.py": "import a_module_that_nobody_has",
    "broken_part/right.py": "PART = 7",
}


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages with these files can be imported."""
    for name, source in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("right", 7),
        ("found_part.right", 7),
        ("found_part.empty", None),
        ("empty", None),
        ("found_part.missing", None),
        ("nowhere.at.all", None),
        ("json", None),
        ("no name", None),
        (".right", None),
        ("", None),
    ],
)
def test_a_part_is_found_or_there_is_none(name: str, value: object) -> None:
    assert find_part("found_part", name, "PART") == value


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("slip", "SyntaxError"),
        ("raises", "RuntimeError: no disk"),
        ("imports", "No module named 'a_module_that_nobody_has'"),
        ("found_part.imports", "No module named 'a_module_that_nobody_has'"),
        ("broken_part.right", "No module named 'a_module_that_nobody_has'"),
    ],
)
def test_one_that_cannot_be_imported_says_why(name: str, why: str) -> None:
    with pytest.raises(ImportError, match=why):
        find_part("found_part", name, "PART")
