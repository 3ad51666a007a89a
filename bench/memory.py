"""`python bench/memory.py TREE …`: the memory that a server keeps after large requests and answers, in MiB.

Long prompts and long answers with log probabilities come at the same time. Resident memory is measured before
them, after the last, and when the server has been idle; for `src`, and for each tree (see `compare.py`).
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from time import sleep

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec

from bench.client import Load, drive, http_request
from bench.compare import HERE
from bench.scenario import MODEL, PLAIN, script_line
from bench.servers import antiphon, running

IDLE_SECONDS = 6
"""Time for a server to give memory back."""
TOKENS = 6000
ALTERNATIVES = 20
PROMPT = "Sing on and on."


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="a folder with the package")
    options = parser.parse_args(arguments)
    for tree in (HERE, *options.trees):
        with (
            antiphon([script_line(PLAIN.tokens(TOKENS), PROMPT)]) as command,
            running(str(tree), command, tree=tree.resolve()) as server,
        ):
            before = _resident(server.pid)
            asyncio.run(_work(server.port))
            after = _resident(server.pid)
            sleep(IDLE_SECONDS)
            print(
                f"{before:7.1f} before{after:7.1f} after{_resident(server.pid):7.1f} idle  {tree}", flush=True
            )
    return 0


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


async def _work(port: int) -> None:
    long, large = _request("word " * 700_000), _request(PROMPT, logprobs=True, top_logprobs=ALTERNATIVES)
    await asyncio.gather(
        drive(Load(long, 3, 3, b"context_length_exceeded", 1, b"}"), port),
        drive(Load(large, 6, 1, b'"finish_reason":"stop"', 1, b"}"), port),
    )


def _request(text: str, **fields: object) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    return http_request(msgspec.json.encode(body))


if __name__ == "__main__":
    sys.exit(main())
