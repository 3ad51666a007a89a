"""schemathesis: the answers to requests that the OpenAPI document allows, and to others, are as it says."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

CONFIG = Path(__file__).parent / "schemathesis.toml"
OTHERS = r"^/(page|docs|metrics)|^/$"
"""Paths whose answers are no JSON: the page, the reference of the API, and Prometheus' text."""


def run(folder: Path, seconds: float) -> dict[str, str | None]:
    """Each operation → what was wrong; None if nothing was."""
    with tempfile.TemporaryDirectory() as name, _serving(Path(name)) as url:
        report = Path(name) / "report.xml"
        subprocess.run(  # noqa: S603 - the suite
            [
                *(folder / "bin" / "schemathesis", "--config-file", CONFIG, "run", f"{url}/openapi.json"),
                *("--url", url, "--exclude-path-regex", OTHERS, "--report-junit-path", report),
                *("--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all"),
            ],
            cwd=name,
            timeout=seconds,
            check=False,
        )
        found: dict[str, str | None] = {}
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - its own
            wrong = [each.get("message", "") for each in (*case.iter("failure"), *case.iter("error"))]
            found[case.get("name", "")] = "\n".join(wrong) if wrong else None
        return found


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """The URL of a server with the scripted engine, which answers anything."""
    script = folder / "script.jsonl"
    script.write_text(json.dumps({"output": "Hello!"}))
    command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    command += ["--store", "memory", "--port", "0", "--model-name", "scripted", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()
