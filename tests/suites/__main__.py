"""Runs the suites of peers, and compares what failed with the list of what does not apply.

    python -m tests.suites FOLDER [llama | openapi | mcp …]

`FOLDER` has what `make test-suites` downloads. Exits with 1 if a test fails that should not, or one that is
said not to apply passes: then it has to be taken from the list.
"""

import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from tests.suites import llama, mcp_conformance, openapi

HERE = Path(__file__).parent
SECONDS = 2400
"""The most that a suite may take, on a busy machine."""

SUITES: Mapping[str, Callable[[Path, float], Mapping[str, str | None]]] = {
    "llama": llama.run,
    "openapi": openapi.run,
    "mcp": mcp_conformance.run,
}
"""Each returns its tests → what was wrong; None if nothing was."""


def compared(suite: str, found: Mapping[str, str | None], known: Mapping[str, str]) -> bool:
    """Print what differs from the list, and whether nothing does.

    An entry of the list is the name of a test, or that of one with parameters without them: all must fail then.
    """
    failed = {name: wrong for name, wrong in found.items() if wrong is not None}
    unknown = {
        name: wrong for name, wrong in failed.items() if not any(_covers(entry, name) for entry in known)
    }
    passed = found.keys() - failed.keys()
    stale = [
        entry
        for entry in known
        if not any(_covers(entry, name) for name in failed) or any(_covers(entry, name) for name in passed)
    ]
    for name, wrong in unknown.items():
        print(f"{suite}: {name} fails: {wrong}")
    for entry in stale:
        print(f"{suite}: {entry} does not fail, but is in does_not_apply.toml")
    print(f"{suite}: {len(passed)} hold, {len(failed) - len(unknown)} do not apply, {len(unknown)} fail")
    return bool(passed) and not unknown and not stale


def _covers(entry: str, name: str) -> bool:
    """Whether an entry of the list is about a test."""
    return entry in {name, name.partition("[")[0]}


def main() -> int:
    """Run the suites that are named, or all."""
    folder, names = Path(sys.argv[1]).absolute(), sys.argv[2:] or [*SUITES]
    known = tomllib.loads((HERE / "does_not_apply.toml").read_text())
    results = []
    for name in names:
        begun = monotonic()
        results.append(compared(name, SUITES[name](folder, SECONDS), known.get(name, {})))
        print(f"{name}: {monotonic() - begun:.0f} seconds", flush=True)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
