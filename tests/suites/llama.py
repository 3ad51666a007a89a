"""llama.cpp's tests of its server, run against `antiphon serve`: see `llama_plugin.py`."""

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).parent
PARTS = ("/vendor/llama.cpp/tools/server/tests/", "/vendor/llama.cpp/models/templates/")
"""The folders of the source distribution that the tests need."""

ALSO = (
    "test_completion.py::test_completion_with_openai_library",
    "test_completion.py::test_completion_stream_with_openai_library",
)
"""Tests of files that do not apply otherwise."""


def run(folder: Path, seconds: float) -> dict[str, str | None]:
    """Each test → what was wrong; None if nothing was."""
    archive = next((folder / "download").glob("llama_cpp_python-*.tar.gz"))
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(archive) as files:
            wanted = (each for each in files if any(part in each.name for part in PARTS))
            files.extractall(name, wanted, filter="data")
        tests = next(Path(name).glob("*/vendor/llama.cpp/tools/server/tests"))
        _change([tests / "utils.py", *tests.glob("unit/*.py")])
        report = Path(name) / "report.xml"
        subprocess.run(  # noqa: S603 - the suite
            [
                *(folder / "bin" / "python", "-m", "pytest", "-p", "llama_plugin", "-q", "--tb=no", "-rN"),
                *("-m", "not slow", "--timeout=120", f"--junitxml={report}", *_selected(tests)),
            ],
            cwd=tests,
            env=os.environ | {"PYTHONPATH": str(HERE), "SUITE_PYTHON": sys.executable},
            timeout=seconds,
            check=False,
        )
        return _read(report)


def _selected(tests: Path) -> list[str]:
    """What is to be run: all files but those that are listed, and `ALSO`."""
    known = tomllib.loads((HERE / "does_not_apply.toml").read_text())["llama_files"]
    files = sorted(file.name for file in tests.glob("unit/test_*.py"))
    if gone := known.keys() - {*files}:
        raise ValueError(f"llama.cpp has no tests {', '.join(sorted(gone))} any more")
    return [f"unit/{name}" for name in (*(file for file in files if file not in known), *ALSO)]


def _change(files: list[Path]) -> None:
    """Make the changes of `llama_changes.toml`. Raises ValueError if the text of one is nowhere."""
    sources = {file: file.read_text() for file in files}
    for change in tomllib.loads((HERE / "llama_changes.toml").read_text())["change"]:
        for before, after in change["texts"]:
            if not any(before in source for source in sources.values()):
                raise ValueError(f"{before} is in no test of llama.cpp any more")
            sources = {file: source.replace(before, after) for file, source in sources.items()}
    for file, source in sources.items():
        file.write_text(source)


def _read(report: Path) -> dict[str, str | None]:
    """The results in a report of pytest's. Tests that were skipped are in none."""
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest's own
        wrong = case.find("failure") if case.find("error") is None else case.find("error")
        if case.find("skipped") is None:
            file = case.get("classname", "").removeprefix("unit.")
            found[f"{file}.py::{case.get('name')}"] = None if wrong is None else wrong.get("message", "")
    return found
