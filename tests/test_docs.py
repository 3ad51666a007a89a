"""The docs keep up with the code."""

import re
from pathlib import Path

from antiphon.dialects.registry import BY_NAME

ROOT = Path(__file__).parent.parent


def test_every_dialect_is_in_the_docs() -> None:
    documented = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "dialects.md").read_text()))

    assert set(BY_NAME) <= documented


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
