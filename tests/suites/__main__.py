"""Runs the suites of peers, and compares what failed with the list of what does not apply.

    python -m tests.suites FOLDER [mcp …]

`FOLDER` has what `make test-suites` downloads. Exits with 1 if a test fails that should not, or one that is
said not to apply passes: then it has to be taken from the list.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 1200
"""The most that a suite may take."""
SCENARIOS = 4
"""Scenarios of MCP's suite at the same time: most of their time is waited for."""

Results = Mapping[str, str | None]
"""Test → what was wrong; None if nothing was."""


def mcp(folder: Path) -> Results:
    """The scenarios of MCP's conformance suite for clients: `mcp_client.py` is ours."""
    program = folder / "node" / "node_modules" / ".bin" / "conformance"
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    scenarios = re.findall(r"  - (\S+)", listed.partition("Client scenarios")[2])
    with ThreadPoolExecutor(SCENARIOS) as pool:
        return dict(zip(scenarios, pool.map(lambda each: _scenario(program, each), scenarios), strict=True))


def _scenario(program: Path, name: str) -> str | None:
    """What was wrong in a scenario, or None."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - the suite
            [
                *(program, "client", "--scenario", name, "--output-dir", folder),
                *("--command", f"'{sys.executable}' '{HERE / 'mcp_client.py'}'"),
            ],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        files = [*Path(folder).rglob("checks.json")]
        checks = [each for file in files for each in json.loads(file.read_text())]
    wrong = [
        f"{each['id']}: {each.get('errorMessage') or each['description']}"
        for each in checks
        if each["status"] == "FAILURE"
    ]
    print(f"{name}: {len(checks)} checks, {len(wrong)} failed", flush=True)
    return "; ".join(wrong) or (None if checks else "it had no checks")


SUITES: Mapping[str, Callable[[Path], Results]] = {"mcp": mcp}


def compared(suite: str, found: Results, known: Mapping[str, str]) -> bool:
    """Print what differs from the list, and whether nothing does."""
    failed = {name: wrong for name, wrong in found.items() if wrong is not None}
    unknown = {name: wrong for name, wrong in failed.items() if name not in known}
    stale = [name for name in known if name not in failed]
    for name, wrong in unknown.items():
        print(f"{suite}: {name} fails: {wrong}")
    for name in stale:
        print(f"{suite}: {name} does not fail, but is in does_not_apply.toml")
    print(f"{suite}: {len(found) - len(failed)} hold, {len(failed) - len(unknown)} do not apply, ", end="")
    print(f"{len(unknown)} fail")
    return bool(found) and not unknown and not stale


def main() -> int:
    """Run the suites that are named, or all."""
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:] or [*SUITES]
    known = tomllib.loads((HERE / "does_not_apply.toml").read_text())
    results = [compared(name, SUITES[name](folder), known.get(name, {})) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
