"""Every dialect, API and demand, combined: see `case.py` for what is combined, and `laws.py` for what must hold.

`make test-matrix` plays all cases, every test run some of each dialect.
"""

import os
from itertools import combinations, product

import pytest

from tests.closed_answers import cut_at_the_same_place
from tests.matrix.apis import APIS
from tests.matrix.case import NAMES, PARAMETERS, TRIPLES, Case, cases, cut_cases
from tests.matrix.play import faults_of
from tests.search import share

WHOLE = bool(os.environ.get("ANTIPHON_TEST_MATRIX"))
SOME = 5
"""The cases of each dialect where not all are played."""
SOME_CUT = 1
"""And of those that are about answers that are cut."""
SOME_BATCHED = 1
"""And of those that are lines of batches, too."""


@pytest.fixture(autouse=True)
def the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at_the_same_place(monkeypatch)


@pytest.mark.timeout(600 if WHOLE else 120)
@pytest.mark.parametrize("dialect", share(NAMES, 3))
async def test_every_answer_is_right(dialect: str) -> None:
    most = None if WHOLE else SOME
    every = [*cases(dialect, most), *cut_cases(dialect, most and SOME_CUT)]
    found = await faults_of(dialect, every, most and SOME_BATCHED)
    assert not found, "\n".join(map(str, found))


def test_all_pairs_of_values_are_covered() -> None:
    every = cases("hermes")
    for names in (*combinations(PARAMETERS, 2), *(tuple(triple["fields"]) for triple in TRIPLES)):
        wanted = {*product(*(PARAMETERS[name] for name in names))}
        assert {tuple(getattr(case, name) for name in names) for case in every} == wanted


def test_some_cases_are_of_every_kind() -> None:
    """Over all dialects, every test run meets each value of a parameter, in every API."""
    some = [case for name in NAMES for case in cases(name, SOME)]
    for api in APIS.values():
        asked = [case for case in some if api.body(case) is not None]
        for name, values in PARAMETERS.items():
            able = {value for value in values if api.body(Case("hermes", **{name: value})) is not None}
            assert {getattr(case, name) for case in asked} >= able, (api.name, name)
