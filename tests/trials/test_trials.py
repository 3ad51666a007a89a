"""Plays every case of `cases.jsonl` against a real server."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.server_process import serving
from tests.trials.player import Server, faults, options_of

FOLDER = Path(__file__).parent
CASES = [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]


def _options(case: Any) -> str:
    return json.dumps(case["server"], sort_keys=True)


BY_SERVER = {options: [*cases] for options, cases in groupby(sorted(CASES, key=_options), _options)}
"""The cases of each server: it is started once for them."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server | str]:
    """The server for some cases; what it says if it does not start."""
    cases = BY_SERVER[request.param]
    with TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, *options_of(cases[0]["server"], cases, folder)) as process:
            try:
                yield Server(process.url, (folder / "stderr").read_text)
            except AssertionError as error:
                yield f"the server does not start: {error}"


EACH = [pytest.param(options, case, id=case["id"]) for options, cases in BY_SERVER.items() for case in cases]


@pytest.mark.parametrize(("server", "case"), EACH, indirect=["server"])
def test_a_case_comes_out_as_it_must(server: Server | str, case: Any) -> None:
    found = [server] if isinstance(server, str) else faults(server, case)
    assert not found, "\n".join((case["about"], *found))
