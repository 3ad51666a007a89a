"""How much of Antiphon the tests reach, in statements and branches: a plugin of pytest, `-p tests.coverage`.

Modules of Antiphon are compiled with marks between their statements (`marks.py`). A mark that is reached stores a byte,
which costs a few per cent of the time; to trace each line doubles it. All processes of the tests map the same file
of marks: nothing has to be combined, and a server that is killed counts, too.
"""

import ast
import builtins
import marshal
import mmap
import os
import sys
from functools import cache
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

from tests import marks

FLOOR = 95
"""Per cent of statements and branches: below it, the tests fail."""

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "antiphon"
OMITTED = {SOURCE / "toolkits" / "code_interpreter" / "runner.py"}
"""It runs in the sandbox, where nothing can be measured."""

FOLDER = ROOT / ".pytest_coverage"
MAP, CODE = FOLDER / "marks", FOLDER / "code"
MARKS_PER_FILE = 4096

MEASURED = "ANTIPHON_TEST_COVERAGE"
"""A variable of the environment: that processes of these tests are to measure."""


@cache
def _files() -> dict[str, int]:
    """Where the marks of each file begin in the map."""
    paths = sorted({*SOURCE.rglob("*.py")} - OMITTED)
    return {str(path): number * MARKS_PER_FILE for number, path in enumerate(paths)}


def _compiled(path: str) -> tuple[list[marks.Mark], CodeType]:
    """The marks of a file, and its code with them. It is compiled once for all processes, and kept."""
    first, source = _files()[path], Path(path).read_bytes()
    key = sha256(b"\0".join([Path(marks.__file__).read_bytes(), path.encode(), b"%d" % first, source]))
    kept = CODE / key.hexdigest()
    if not kept.exists():
        marker = marks.Marker(first)
        tree = ast.parse(source)
        tree.body = marker.block(tree.body)
        assert len(marker.marks) <= MARKS_PER_FILE
        code = compile(tree, path, "exec", dont_inherit=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_bytes(marshal.dumps(([(mark.lines, mark.branch) for mark in marker.marks], code)))
        new.replace(kept)
    found, code = marshal.loads(kept.read_bytes())  # noqa: S302 - our own
    return [marks.Mark(*each) for each in found], code


def _begin() -> None:
    """Nothing is reached yet."""
    CODE.mkdir(parents=True, exist_ok=True)
    MAP.unlink(missing_ok=True)  # tests that still run keep theirs
    MAP.write_bytes(bytes(len(_files()) * MARKS_PER_FILE))
    os.environ[MEASURED] = "1"


def _measure() -> None:
    """Measure what this process imports from here on: all ways to import end in `get_code`."""
    assert SOURCE.name not in sys.modules
    with MAP.open("r+b") as file:
        setattr(builtins, marks.NAME, mmap.mmap(file.fileno(), 0))
    plain = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return _compiled(loader.path)[1] if loader.path in _files() else plain(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


if MEASURED not in os.environ:
    _begin()
_measure()


@cache
def _report() -> tuple[float, list[str]]:
    """How much is reached, in per cent, and what is not, of each file."""
    reached, total, lines = 0, 0, []
    stored = getattr(builtins, marks.NAME)
    for path, first in _files().items():
        found, _ = _compiled(path)
        missing = [mark for number, mark in enumerate(found, first) if not stored[number]]
        total += sum(mark.size for mark in found)
        reached += sum(mark.size for mark in found) - sum(mark.size for mark in missing)
        if missing:
            lines.append(f"{Path(path).relative_to(ROOT)}: {', '.join(map(str, missing))}")
    percent = 100 * reached / total
    lines.append(f"{percent:.2f} % of {total} statements and branches are reached; {FLOOR} % have to be")
    return percent, lines


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail below the floor, in the process that the others report to, where any test was run."""
    quiet = hasattr(session.config, "workerinput") or session.config.option.collectonly
    if not quiet and _report()[0] < FLOOR:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.collectonly:
        return
    terminalreporter.section("not reached")
    for line in _report()[1]:
        terminalreporter.line(line)
