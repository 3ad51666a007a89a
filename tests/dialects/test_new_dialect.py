"""The skeleton that `make new-dialect` writes is a dialect, and spoils nothing of the others."""

import shutil
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.core.chunks import Finish, FinishReason
from antiphon.decode.table import Table
from antiphon.dialects.detection.detect import Evidence, detect
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from tests.contracts.dialect import CASES, TOOLS, answers
from tests.dialects.templates import CODER, TAGS
from tests.dialects.test_contract import written
from tests.laws import check, decode, fold

ROOT = Path(__file__).parent.parent.parent


def loaded(name: str, path: Path) -> ModuleType:
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = loaded("new_dialect", ROOT / "scripts" / "new_dialect")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source tree with a new dialect."""
    for folder in ("src/antiphon/dialects", "tests/cases", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "dialects.md", tmp_path / "docs")
    assert script.main(["my_family"], tmp_path) == 0
    return tmp_path


def dialect_in(root: Path) -> Dialect:
    found: Dialect = loaded("my_family", root / "src/antiphon/dialects/my_family.py").MY_FAMILY
    return found


def test_it_lists_every_case(root: Path) -> None:
    assert list(tomllib.loads((root / "tests/cases/my_family.toml").read_text())) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_its_grammar_answers_every_case(case: str, root: Path) -> None:
    answer = answers("hermes")[case]
    if "output" not in answer or case == "reasoning_again":  # its tags are text, which may be quoted
        return
    text = answer["output"].replace("tool_call>", "my_family>")
    items = [{k: v.replace("tool_call>", "my_family>") for k, v in item.items()} for item in answer["items"]]
    table, options = Table(dialect_in(root).grammar), {"tools": TOOLS, "state": answer.get("state")}
    check(table, text, **options)
    found = fold(decode(table, [text], Finish(FinishReason(answer.get("finish", "stop"))), **options)).items
    assert [written(item, {}) for item in found] == items


@pytest.mark.parametrize(("template", "name"), [(TAGS, "hermes"), (CODER, "qwen3_coder")])
def test_the_others_are_still_found(template: str, name: str, root: Path) -> None:
    assert detect(Evidence(template), [*DIALECTS, dialect_in(root)]).name == name


def test_it_is_found_by_its_markers(root: Path) -> None:
    template = TAGS.replace("tool_call>", "my_family>")
    assert detect(Evidence(template), [*DIALECTS, dialect_in(root)]).name == "my_family"


def test_it_has_a_row_in_the_docs(root: Path) -> None:
    before, after = ((path / "docs" / "dialects.md").read_text().splitlines() for path in (ROOT, root))
    at = next(n for n, line in enumerate(after) if "my_family" in line)

    assert after[:at] + after[at + 1 :] == before
    assert after[at].count("|") == after[at - 1].count("|")
    assert after[at - 1] < after[at] < after[at + 1]


@pytest.mark.parametrize("arguments", [[], ["My-Family"], ["a", "b"]])
def test_it_says_how_to_use_it(arguments: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(arguments, root) == 2
    assert "make new-dialect NAME=" in capsys.readouterr().err


def test_it_overwrites_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["my_family"], root) == 1
    assert "'my_family' already" in capsys.readouterr().err
