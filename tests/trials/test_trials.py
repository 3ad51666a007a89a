"""Plays every case of `cases.jsonl` against a real server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.search import share
from tests.server_process import serving
from tests.trials.player import Server, faults, options_of

FOLDER = Path(__file__).parent
CASES = [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]


def _options(case: Any) -> str:
    """What the cases of one server have in common. A model that waits has its own: its next answer would wait less."""
    waits = any("delay_ms" in line for line in case.get("script", ()))
    return json.dumps([case["server"], case["id"] if waits else None], sort_keys=True)


BY_SERVER = {options: [*cases] for options, cases in groupby(sorted(CASES, key=_options), _options)}
"""The cases of each server: it is started once for them."""


class Servers:
    """Starts the server of each case, and keeps it for the next case. pytest would start it again for each parameter."""

    def __init__(self) -> None:
        self._options: str | None = None
        self._server: Server | str = ""
        self._stack = ExitStack()

    def of(self, options: str) -> Server | str:
        """The server with these options; what it says if it does not start."""
        if options != self._options:
            self.close()
            self._server, self._options = self._started(BY_SERVER[options]), options
        return self._server

    def _started(self, cases: list[Any]) -> Server | str:
        folder = Path(self._stack.enter_context(TemporaryDirectory()))
        process = self._stack.enter_context(serving(folder, *options_of(cases[0]["server"], cases, folder)))
        try:
            return Server(process.url, folder / "stderr")
        except AssertionError as error:
            return f"the server does not start: {error}"

    def close(self) -> None:
        """End the server that runs."""
        self._options = None
        self._stack.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with closing(Servers()) as servers:
        yield servers


EACH = [
    pytest.param(options, case, id=case["id"])
    for options, cases in BY_SERVER.items()
    for case in share(cases, 3)
]


@pytest.mark.parametrize(("options", "case"), EACH)
def test_a_case_comes_out_as_it_must(servers: Servers, options: str, case: Any) -> None:
    server = servers.of(options)
    found = [server] if isinstance(server, str) else faults(server, case)
    assert not found, "\n".join((case["about"], *found))
