"""MCP's conformance suite for clients: `mcp_client.py` is the client."""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLIENT = Path(__file__).parent / "mcp_client.py"
SCENARIOS = 4
"""Scenarios at the same time: most of their time is waited for."""


def run(folder: Path, seconds: float) -> dict[str, str | None]:
    """Each scenario → what was wrong; None if nothing was."""
    program = folder / "node" / "node_modules" / ".bin" / "conformance"
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    scenarios = re.findall(r"  - (\S+)", listed.partition("Client scenarios")[2])
    with ThreadPoolExecutor(SCENARIOS) as pool:
        results = pool.map(lambda each: _scenario(program, each, seconds), scenarios)
        return dict(zip(scenarios, results, strict=True))


def _scenario(program: Path, name: str, seconds: float) -> str | None:
    """What was wrong in a scenario, or None."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - the suite
            [
                *(program, "client", "--scenario", name, "--output-dir", folder),
                *("--command", f"'{sys.executable}' '{CLIENT}'"),
            ],
            capture_output=True,
            timeout=seconds,
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
