"""What a failure says that comes of a table without a row."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.dialect import CASES as SAMPLES
from tests.rows import every_row, missing_row

TABLE: dict[str, Any] = {"a": {"b": [1]}}
PLACE = "tests/test_rows.py"


@pytest.mark.parametrize(
    ("lookup", "said"),
    [
        (lambda: TABLE["new"], f"add a row for 'new' to TABLE ({PLACE}:"),
        (lambda: {name: TABLE[name] for name in ("a", "new")}, f"add a row for 'new' to TABLE ({PLACE}:"),
        (lambda: TABLE["a"]["new"], f"add a row for 'new' to TABLE ({PLACE}:"),
        (lambda: SAMPLES["new"], "add a row for 'new' to CASES (tests/contracts/dialect.py:"),
        (lambda: {"a": 1}["new"], "there is no 'new' in {'a': 1}['new'] at " + PLACE),
        (lambda: TABLE["a"]["b"][1], f"nothing is there for TABLE['a']['b'][1] at {PLACE}"),
        (lambda: next(name for name in TABLE if name == "new"), "nothing is there for next("),
    ],
)
def test_a_failed_lookup_names_the_row_and_its_place(lookup: Callable[[], object], said: str) -> None:
    with pytest.raises((KeyError, IndexError, StopIteration)) as raised:
        lookup()
    assert (missing_row(raised.value) or "").startswith(said)


def test_other_failures_stay_as_they_are() -> None:
    with pytest.raises(KeyError) as raised:
        raise KeyError("secret")
    assert missing_row(raised.value) is None
    assert missing_row(ValueError()) is None


def test_rows_that_are_missing_or_left_over_are_named_together() -> None:
    with pytest.raises(AssertionError) as raised:
        every_row(TABLE, ["b", "c"], "TABLE (here)")
    assert [line.strip() for line in str(raised.value).splitlines()[:3]] == [
        "add a row for 'b' to TABLE (here)",
        "add a row for 'c' to TABLE (here)",
        "remove 'a' from TABLE (here): there is no such part",
    ]
