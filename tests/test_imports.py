"""Importing Antiphon, or asking for help, loads no engine and no web server."""

import subprocess
import sys

import pytest

HEAVY = {"xllamacpp", "starlette", "uvicorn", "uvloop", "jinja2"}


@pytest.mark.parametrize(
    "code",
    [
        "import antiphon",
        "import antiphon.cli",
        "import antiphon.chat",
        "import antiphon.cli; antiphon.cli.main(['serve', '--help'])",
    ],
)
def test_nothing_heavy(code: str) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n' + ' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "antiphon" in loaded
    assert not loaded & HEAVY
