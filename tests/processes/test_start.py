"""A process that is started: what happens if it dies before it reads what it is started with."""

import os

import pytest

from antiphon.processes import start
from antiphon.processes.start import Start, spawn


def test_one_that_is_dead_before_it_is_told_anything_has_been_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "_PROGRAM", "import os; os._exit(9)")
    reading, writing = os.pipe()
    settings = b"x" * 10_000_000  # more than a pipe holds: it is told while it ends
    try:
        process = spawn(
            "antiphon.http.process",
            Start(
                settings=settings,
                place=0,
                count=2,
                row=0,
                server="a",
                listener=reading,
                channel=writing,
                table=reading,
                bell=reading,
                bells=[writing],
            ),
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert process.wait() == 9
