"""Filters on attributes of files."""

from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.toolkits.file_search.query import parse_filter

FILE = {"name": "cat", "legs": 4, "weight": 4.5, "tame": True}


@pytest.mark.parametrize(
    ("type_", "key", "value", "admitted"),
    [
        ("eq", "name", "cat", True),
        ("eq", "name", "dog", False),
        ("eq", "legs", 4.0, True),
        ("eq", "tame", True, True),
        ("eq", "tame", 1, False),
        ("eq", "nothing", "x", False),
        ("ne", "name", "cat", False),
        ("ne", "nothing", "cat", True),
        ("gt", "legs", 3, True),
        ("gt", "legs", 4, False),
        ("gte", "legs", 4, True),
        ("lt", "weight", 5, True),
        ("lte", "weight", 4, False),
        ("gt", "name", "bat", True),
        ("gt", "name", 3, False),
        ("lt", "nothing", 3, False),
        ("gte", "tame", True, False),
        ("in", "name", ["cat", "dog"], True),
        ("in", "legs", [], False),
        ("nin", "name", ["cat"], False),
        ("nin", "nothing", ["cat"], True),
    ],
)
def test_comparisons(type_: str, key: str, value: Any, admitted: bool):
    given = {"type": type_, "key": key, "value": value}
    assert parse_filter(given, "filters").admits(FILE) is admitted
    both = {"type": "and", "filters": [given, {"type": "eq", "key": "legs", "value": 4}]}
    assert parse_filter(both, "filters").admits(FILE) is admitted
    either = {"type": "or", "filters": [given, {"type": "eq", "key": "legs", "value": 5}]}
    assert parse_filter(either, "filters").admits(FILE) is admitted


def test_a_file_is_looked_up_in_a_list_and_not_compared_with_all_of_it():
    compared = 0

    class Counted(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    values = [Counted(f"v{number}") for number in range(1000)]
    given = parse_filter({"type": "in", "key": "name", "value": values}, "filters")
    files = [{"name": f"v{number}"} for number in range(990, 1010)]
    assert [given.admits(file) for file in files] == [True] * 10 + [False] * 10
    assert compared < 100


def test_too_many_and_too_deep():
    one: dict[str, Any] = {"type": "eq", "key": "k", "value": 1}
    with pytest.raises(RequestError, match="more than 500"):
        parse_filter({"type": "or", "filters": [one] * 500}, "filters")
    with pytest.raises(RequestError, match="5000 values"):
        parse_filter({"type": "nin", "key": "k", "value": ["x"] * 5001}, "filters")
    for _ in range(25):
        one = {"type": "and", "filters": [one]}
    with pytest.raises(RequestError, match="levels"):
        parse_filter(one, "filters")
