"""Sends every endpoint requests that are derived from its own types, and mutated.

    python fuzz/endpoints.py --cases 100000 --seed 1

Starts `antiphon serve` with the scripted engine. A request that is answered with 500 or above, or not at
all, is printed; then the exit status is 1. `tests/http/test_fuzz.py` is the short form.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from attacks import started

from tests.wire_cases import MADE, cases

BATCH = 1000
"""Requests of one seed."""
CONNECTIONS = 4


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    answers, failures = Counter[str](), 0
    with started() as server, ThreadPoolExecutor(CONNECTIONS) as pool:
        ids = {name: server.created(path, body)["id"] for name, (path, body) in MADE.items()}
        for number in range(0, arguments.cases, BATCH):
            address = f"127.0.0.{1 + number // BATCH % 100}"  # of a single one, the ports run out
            batch = cases(arguments.seed + number // BATCH, min(BATCH, arguments.cases - number), ids)
            for case, answer in zip(
                batch,
                pool.map(
                    lambda case, address=address: server.request(
                        case.method, case.path, case.body, case.content_type, address=address
                    ),
                    batch,
                ),
                strict=True,
            ):
                answers[answer] += 1
                if not answer.startswith(("2", "4")):
                    failures += 1
                    print(f"{answer}: {case}", flush=True)
        print(f"{server.memory():.0f} MB", dict(answers))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
