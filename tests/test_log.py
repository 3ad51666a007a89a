"""How lines of the log are written: the quick way says what structlog's own renderer says."""

import io
import os
import sys
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from antiphon.log import configure, say

NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
VALUES = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(" ='\"\nabcdefé.", max_size=12),
    st.lists(st.text()),
)


def line_of(event: str, known: dict[str, Any]) -> str:
    """The line that our configuration writes, where no terminal is."""
    out = io.StringIO()
    before, usual = sys.stderr, structlog.get_config()
    sys.stderr = out
    try:
        configure("info")
        structlog.get_logger().info(event, **known)
    finally:
        sys.stderr = before
        structlog.configure(**usual)
    return out.getvalue()


@given(
    event=st.text("abc ", min_size=1, max_size=40).filter(str.strip),
    known=st.dictionaries(NAMES, VALUES, max_size=4),
)
def test_a_line_is_that_of_structlog(event: str, known: dict[str, Any]):
    known = {name: value for name, value in known.items() if name != "event"}
    stamp, rest = line_of(event, known).split(" ", 1)
    renderer = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=30)
    expected = renderer(None, "info", {"timestamp": stamp, "level": "info", "event": event, **known})
    assert f"{stamp} {rest}" == expected + "\n"


@pytest.mark.parametrize("value", ["\x1b[31mred", "a\x00b", "\u202eevil", "tab\there"])
def test_what_is_not_seen_is_quoted(value: str):
    line = line_of("request", {"path": value})
    assert f"path={value!r}" in line
    assert line.isprintable() or line[:-1].isprintable()


def test_a_text_that_a_client_made_long_is_cut():
    line = line_of("request", {"model": "x" * 3_000_000, "path": "/v1/models"})
    assert len(line) < 5_000
    assert "… (3000000 characters)" in line
    assert "path=/v1/models" in line


def test_a_reader_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch):
    usual = structlog.get_config()
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        monkeypatch.setattr(sys, "stdout", gone)
        configure("info")
        structlog.get_logger().info("request")
        say("stopping")
        structlog.configure(**usual)
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            gone.write("x\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())  # what it holds goes there when it is closed


def test_an_error_has_its_traceback():
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    line = line_of("request failed", {"exc_info": raised.value})
    assert "Traceback (most recent call last)" in line
    assert line.endswith("ZeroDivisionError: division by zero\n")
