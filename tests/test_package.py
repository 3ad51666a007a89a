"""What is released: the wheel, the source distribution, and what they say of themselves.

Both are built here, by hatchling, which needs nothing from outside; `make test-package` also installs the wheel.
"""

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import antiphon

pytest.importorskip("hatchling", reason="make .venv/.test installs it")

ROOT = Path(__file__).parent.parent
SOURCES = {
    path.relative_to(ROOT / "src").as_posix()
    for path in (ROOT / "src" / "antiphon").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    """The files of the wheel."""
    with zipfile.ZipFile(built / f"antiphon-{antiphon.__version__}-py3-none-any.whl") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    info = f"antiphon-{antiphon.__version__}.dist-info"
    described = {
        f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert set(wheel) == SOURCES | described
    assert wheel[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"antiphon = antiphon.cli:main" in wheel[f"{info}/entry_points.txt"]


@pytest.mark.parametrize(
    "part",
    [
        r"http/static/index\.html",
        r"http/static/vendor/.*",
        r"store/.*migrations?.*\.py",
        r"demo\.jsonl",
        r"py\.typed",
    ],
)
def test_the_wheel_has_what_is_no_module(wheel: dict[str, bytes], part: str) -> None:
    assert [name for name in wheel if re.fullmatch(f"antiphon/{part}", name)]


def test_the_source_distribution_builds_the_same_and_has_no_tests(built: Path) -> None:
    top = f"antiphon-{antiphon.__version__}"
    with tarfile.open(built / f"{top}.tar.gz") as archive:
        names = {name.removeprefix(f"{top}/") for name in archive.getnames()}
    of_project = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "constraints.txt",
        "PKG-INFO",
        ".gitignore",
    }
    assert names == {f"src/{name}" for name in SOURCES} | of_project


def test_the_metadata(wheel: dict[str, bytes]) -> None:
    described = email.message_from_bytes(wheel[f"antiphon-{antiphon.__version__}.dist-info/METADATA"])
    assert described["Version"] == antiphon.__version__
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Description-Content-Type"] == "text/markdown"
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)]
    assert set(versions) <= set(described.get_all("Classifier"))
    assert described["Requires-Python"] == ">=3.11"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(described.get_all("Provides-Extra")) == set(extras)


def test_the_extra_for_a_laptop_has_llama_cpp_and_downloads() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["llama-cpp"]) | set(extras["hub"]) == set(extras["local"])


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text().count(
        f'"{antiphon.__version__}"'
    ) == 1
