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
        "import antiphon.doctor",
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


def test_the_list_of_commands_needs_no_options_of_the_server() -> None:
    """`antiphon --help` takes twice as long with them."""
    code = (
        "import antiphon.cli; antiphon.cli.main(['--help']); import sys; print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "antiphon.cli" in loaded
    assert {name for name in loaded if name.startswith(("antiphon.", "asyncio"))} <= {
        "antiphon.cli",
        "antiphon.core",
        "antiphon.core.errors",
        "antiphon.core.located",
        "antiphon.option_types",
    }
