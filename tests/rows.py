"""Tables of tests that have a row for each dialect, API, option or other part: a plugin of pytest.

A test that looks up what a table lacks fails with a sentence that names the row, and the file and line to add it at,
in place of a bare `KeyError`; it is the same where a list is too short, or nothing fits that `next` looks for. The
place is read from the traceback, so tables are plain dictionaries, and tests look rows up as they like.
"""

import ast
from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LOOKUPS = (KeyError, IndexError, StopIteration, AttributeError)


def every_row(table: Collection[Hashable], keys: Collection[Hashable], place: str) -> None:
    """Fail unless the table, which is at `place`, has one row for each key, and no other."""
    lines = [f"add a row for {key!r} to {place}" for key in keys if key not in table]
    lines += [f"remove {key!r} from {place}: there is no such part" for key in table if key not in keys]
    lines += [f"{key!r} is in {place} {count} times" for key, count in Counter([*table]).items() if count > 1]
    assert not lines, "\n".join(lines)


def missing_row(error: BaseException) -> str | None:
    """What to add, and where, if a line of a test looked up what is not there; None for other errors."""
    if not isinstance(error, LOOKUPS) or (last := _last(error.__traceback__)) is None:
        return None
    file, position = Path(last.tb_frame.f_code.co_filename), _position(last)
    if not file.is_relative_to(TESTS):
        return None
    line = f"{file.relative_to(ROOT)}:{last.tb_lineno}"
    node = _nodes(file).get(position)
    if node is None:
        return None
    asked = ast.unparse(node)
    if isinstance(node, ast.Subscript) and isinstance(error, KeyError):
        key = repr(error.args[0]) if error.args else ast.unparse(node.slice)
        table = _table(file, node.value)
        return (
            f"add a row for {key} to {table}, for {asked} at {line}"
            if table
            else f"there is no {key} in {asked} at {line}"
        )
    return f"nothing is there for {asked} at {line}: {type(error).__name__} {error}"


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _position(traceback: TracebackType) -> tuple[int | None, ...]:
    """Where the expression begins and ends: lines and columns."""
    return [*traceback.tb_frame.f_code.co_positions()][traceback.tb_lasti // 2]


@cache
def _nodes(file: Path) -> dict[tuple[int | None, ...], ast.expr]:
    """The lookups of a file, by their positions."""
    looking = (ast.Subscript, ast.Call, ast.Attribute)
    return {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, looking)
    }


def _table(file: Path, table: ast.expr) -> str | None:
    """The name of a table of a module, with its file and line."""
    while isinstance(table, ast.Subscript | ast.Attribute):
        table = table.value
    if not isinstance(table, ast.Name):
        return None
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)) if (
                name == table.id
            ):
                return f"{name} ({file.relative_to(ROOT)}:{statement.lineno})"
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("tests."):
                source = find_spec(module)
                for alias in names:
                    if (alias.asname or alias.name) == table.id and source and source.origin:
                        return _table(Path(source.origin), ast.Name(alias.name))
    return None


@contextmanager
def _told() -> Iterator[None]:
    """Say which row is missing where a lookup in the tests fails."""
    try:
        yield
    except LOOKUPS as error:
        if (row := missing_row(error)) is None:
            raise
        raise AssertionError(row) from error


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    with _told():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, Any, Any]:
    with _told():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    error = report.call.excinfo.value if report.call is not None and report.call.excinfo else None
    if error is not None and (said := missing_row(error.__cause__ or error)) is not None:
        report.longrepr = said
    return report
