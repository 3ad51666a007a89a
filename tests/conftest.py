"""In which order tests run, and what makes each process quicker."""

import gc
import re
from collections import defaultdict
from pathlib import Path

import pytest
import structlog

from tests.search import CASES_IN_CI, CI, spread

pytest_plugins = ["tests.migrating", "tests.postgresql", "tests.rows", "tests.shallow_model"]

TESTS = Path(__file__).parent
FIRST = [
    TESTS / path
    for path in (
        "clients/test_real_constraints.py",
        "clients/test_real_model.py",
        "clients/test_real_models.py",
        "constrain/test_real_schemas.py",
        "engines/test_llama_cpp.py",
        "engines/test_upstream_llama.py",
        "test_durable.py",
        "test_hosts.py",
        "test_processes.py",
        "test_serve.py",
        "test_simulation.py",
        "test_streams.py",
        "test_takeover.py",
        "test_tutorial.py",
    )
]
"""They load the bundled model, or wait for processes: begun last, all would wait for them at the end."""

re._MAXCACHE = 10_000  # the patterns of all dialects are more than the 512 that stay compiled otherwise

*_processors, _ = structlog.get_config()["processors"]
_renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*_processors, _renderer])
"""Plain lines: to draw a traceback in boxes and colours takes longer than the test that it is logged in."""

gc.disable()  # until everything is collected: nothing of that is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first: of two processes of pytest-xdist, one begins with them, the other in the middle."""
    items.sort(key=lambda item: item.path not in FIRST)
    if CI:
        items[:] = _share(items)


def _share(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of each test, as many cases as CI tries."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    chosen = {item for of_test in cases.values() for item in spread(of_test, CASES_IN_CI)}
    return [item for item in items if item in chosen]


def pytest_collection_finish() -> None:
    """What was collected stays: who looks for garbage need not look through it."""
    gc.freeze()
    gc.enable()
