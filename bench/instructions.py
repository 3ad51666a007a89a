"""`python bench/instructions.py`: the processor's instructions for a full answer, counted by Valgrind.

Instructions hardly depend on the machine, and not on its load: two runs differ by 0.3 %, where times differ
by 10 %. So they show what a small change of the code does. They are not times: an instruction of a loop over
bytes takes less than one of a call. The answer is that of target 3, see README.md.

It needs Valgrind (`apt-get install valgrind`), and takes a minute.
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

from bench.client import drive
from bench.over_http import answers
from bench.servers import Server, antiphon, running

WARM_UP, COUNTED = 480, 400
"""Answers before counting begins, and while it is on."""


def main() -> int:
    """Count and print."""
    with antiphon() as command:
        for name, arguments in (
            ("Antiphon", command),
            ("uvicorn, JSON, jinja2, structlog", ("-m", "bench.libraries", "work")),
            ("uvicorn, JSON", ("-m", "bench.libraries")),
        ):
            print(f"{counted(name, arguments):12,}  {name}", flush=True)
    return 0


def counted(name: str, arguments: Sequence[str]) -> int:
    """The instructions of a server for one full answer."""
    with TemporaryDirectory(prefix="antiphon-bench-") as folder:
        result = Path(folder) / "callgrind"
        valgrind = ("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no")
        with running(name, tuple(arguments), (*valgrind, f"--callgrind-out-file={result}")) as server:
            asyncio.run(drive(answers(WARM_UP), server.port))
            _count(server, "on")
            asyncio.run(drive(answers(COUNTED), server.port))
            _count(server, "off")
        lines = result.read_text().splitlines()
    return round(sum(int(line.split()[1]) for line in lines if line.startswith("totals:")) / COUNTED)


def _count(server: Server, state: str) -> None:
    control = ("callgrind_control", "--instr=" + state, str(server.pid))
    subprocess.run(control, check=True, capture_output=True)  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
