"""What `make check` says of the code that tests reach."""

import ast
import builtins
from typing import Any

import pytest

from tests import marks

BRANCHES = """
def f(x):
    if x:
        y = 1
    for y in x:
        if y == 2:
            break
    else:
        return 0
    while x:
        x.pop()
    return 1
"""
MATCHES = """
def f(x):
    match x:
        case [1]:
            return 1
        case [2, *_] | [3]:
            pass
    match x:
        case []:
            return 2
        case _:
            return 3
"""
ELSE = """
def f(x):
    if x == [1]:
        return 1
    elif x:
        return 2
    else:
        return 3
"""
FAILS = """
def f(x):
    y = 1
    try:
        y = x[0]
        y += 1
        y += 2
    except IndexError:
        return 0
    finally:
        y = 2
    z = 3
    return z
"""
NOT_MEANT = '''
from typing import TYPE_CHECKING, Protocol, assert_never

if TYPE_CHECKING:
    import nowhere

class P(Protocol):
    """Something."""

    def one(self):
        """It has this."""
        ...

    def other(self):
        raise NotImplementedError

def f(x):
    match x:
        case [1]:
            return 1
        case _:
            assert_never(x)
'''
INSIDE = """
class C:
    async def g(self):
        async with self:
            return 1
    def h(self):
        with self:
            return 2

def f(x):
    while True:
        def inner():
            return 3
        return 3
"""


@pytest.mark.parametrize(
    ("source", "calls", "missing"),
    [
        (BRANCHES, [], ["3", "4", "3->", "5", "6", "7", "6->", "9", "10", "11", "10->", "12"]),
        (BRANCHES, [[]], ["4", "6", "7", "6->", "10", "11", "10->", "12"]),
        (BRANCHES, [[], [2]], ["6->"]),
        (BRANCHES, [[], [2], [1]], []),
        (MATCHES, [[1]], ["7", "3->", "8", "10", "12"]),
        (MATCHES, [[2]], ["5", "3->", "10"]),
        (MATCHES, [[1], [2], []], []),
        (ELSE, [[1]], ["5", "6", "8"]),
        (ELSE, [[1], [2]], ["8"]),
        (FAILS, [[]], ["5-7", "12-13"]),
        (FAILS, [[1]], ["9"]),
        (NOT_MEANT, [[1]], []),
        (INSIDE, [[]], ["4", "5", "7", "8", "13"]),
    ],
)
def test_what_is_not_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, source: str, calls: list[Any], missing: list[str]
):
    """Statements by their lines; branches by where they begin and where they lead to."""
    reached: dict[int, int] = {}
    monkeypatch.setattr(builtins, marks.NAME, reached, raising=False)
    marker, tree = marks.Marker(100), ast.parse(source)
    tree.body = marker.block(tree.body)
    names: dict[str, Any] = {}
    exec(compile(tree, "sample.py", "exec"), names)  # noqa: S102
    for each in calls:
        names["f"](each)
    assert [str(mark) for number, mark in enumerate(marker.marks, 100) if number not in reached] == missing
