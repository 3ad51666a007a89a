"""The first requests may come at once, and be read in several threads: the process survives that."""

import subprocess
import sys

import pytest

FIRST = """
import sys, threading
from contextlib import suppress
from types import SimpleNamespace

import msgspec

from antiphon.app.keys import KeyTable
from antiphon.config import Settings
from antiphon.http.app import build
from antiphon.apis.{api}.schema import {kind}

build(SimpleNamespace(settings=Settings(), keys=KeyTable()))
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(16)


def read():
    barrier.wait()
    with suppress(msgspec.ValidationError):
        msgspec.json.decode(b'{{"model": "a", "messages": [], "input": "a", "prompt": "a"}}', type={kind})


threads = [threading.Thread(target=read) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("chat", "ChatRequest"),
        ("completions", "CompletionRequest"),
        ("messages", "CreateMessage"),
        ("responses", "CreateResponse"),
    ],
)
def test_the_first_requests_may_be_read_at_once(api: str, kind: str) -> None:
    """Without `prepare_types`, most of these processes end by a segmentation fault."""
    code = FIRST.format(api=api, kind=kind)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
