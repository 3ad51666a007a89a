"""Faults that are put into the source on purpose, to show that simulations find them.

    python -m simulation.faults              # how long it takes to find each of them
    python -m simulation.faults "a slot"     # those whose names begin so

Every law is violated by at least one, and every action of clients finds at least one.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SEEDS = 3000
"""A fault has to be found within this number of simulations."""
TIMES = 3
"""The number of searches for each, from different seeds, to measure the time."""


class Fault(NamedTuple):
    """In `file`, `right` is replaced by `wrong`, and a law reports one of `found` (a regular expression).

    It is searched in simulations with the features `wanted`, see `world.fits`, from seed `first` on: one
    that is known to find it, so that tests need not try hundreds before. Others would find it, too.
    """

    file: str
    right: str
    wrong: str
    found: str
    wanted: tuple[str, ...] = ()
    first: int = 0


FAULTS = {
    "an event is dropped at a takeover": Fault(
        "app/journal.py",
        "            lines = lines[known:]\n",
        "            lines = lines[known + 1 :]\n",
        "a reader gets event|has another number|never end|follows",
    ),
    "a lease is taken that has not run out": Fault(
        "store/jobs.py",
        '"now": claim.now,',
        '"now": claim.now + 2.5,',
        "was taken while another server held it",
    ),
    "a slot is forgotten": Fault(
        "engines/admission.py",
        "        self.running -= 1\n",
        "        self.running -= 1 if self.waiting else 0\n",
        "slots of the engine|is not answered|never end",
    ),
    "a reader misses an event": Fault(
        "app/event_log.py",
        "after + 1 - entries[0].first",
        "after + 1 - entries[0].first + (after > 3)",
        "a reader gets event",
    ),
    "an approval is good for many calls": Fault(
        "store/approvals.py",
        "return claimed in (None, claim.response_id)",
        "return True",
        "is run twice",
    ),
    "a call is run again after a takeover": Fault(
        "run/tool_calls.py",
        "if number < self._context.calls_begun and not",
        "if number < 0 and not",
        "is run twice",
        wanted=("background", "kill"),
        first=66,
    ),
    "a call that was not approved is run": Fault(
        "apis/responses/approvals.py",
        '        if item.flag_or_none("approve"):\n',
        "        if True:\n",
        "was not approved",
        first=31,
    ),
    "an answer is not in its conversation": Fault(
        "store/responses.py",
        "conversations.append(transaction, at.conversation_id, end.conversation)",
        "conversations.append(transaction, at.conversation_id, end.conversation[:1])",
        "is not in its conversation",
    ),
    "keys are not looked at": Fault(
        "store/responses.py",
        '(responses.c.owner == bindparam("owner"))\n_CREATE',
        '(bindparam("owner") != "")\n_CREATE',
        "is shown to another key|sees data of",
    ),
    "a request of a batch is answered again at a takeover": Fault(
        "app/message_batches.py",
        "        done = {entry.custom_id for entry in recorded if isinstance(entry, BatchResult)}\n",
        "        done = set[str]()\n",
        "is answered again|has the result|two results",
        first=63,
    ),
    "the results of a batch are forgotten at a takeover": Fault(
        "app/message_batches.py",
        'return [read_entry(line) for entry in log for line in entry.events.split(b"\\n")]',
        'return [read_entry(line) for entry in log[:0] for line in entry.events.split(b"\\n")]',
        "is answered again|two results|has results of",
        first=63,
    ),
    "a request of a batch is left out": Fault(
        "app/message_batches.py",
        "        self._left = iter([request for request in requests if",
        "        self._left = iter([request for request in [*requests][:3] if",
        "has results of",
    ),
    "an answer is started again at a takeover": Fault(
        "app/responses/create.py",
        "ReplayLog(read_entries([entry.chunks for entry in entries]))",
        "ReplayLog()",
        "is started again",
        first=42,
    ),
    "an answer is started again when a replica fails": Fault(
        "run/generation.py",
        "            if replay.chunks:\n                request,",
        "            if False:\n                request,",
        "is started again|reads|says",
    ),
    "clients hear that a replica failed": Fault(
        "engines/pool.py",
        "        lost = ReplicaLostError()\n",
        "        return error\n        lost = ReplicaLostError()\n",
        "is told|is failed, not",
    ),
    "nobody looks at deadlines": Fault(
        "run/drive.py",
        "asyncio.timeout(self._deadline)",
        "asyncio.timeout(None)",
        "after its deadline",
    ),
    "a deadline starts again at a takeover": Fault(
        "app/responses/create.py",
        "wire.deadline_seconds, record.created_at)",
        "wire.deadline_seconds)",
        "after its deadline",
        wanted=("background", "kill", "deadlines"),
        first=939,
    ),
    "a deadline passes too early": Fault(
        "run/drive.py",
        "asyncio.timeout(self._deadline)",
        "asyncio.timeout(self._deadline / 2)",
        "is not late",
    ),
    "a WebSocket forgets a turn": Fault(
        "http/socket.py",
        "        elif not creation.stored or previous in self._remembered:\n",
        "        elif previous in self._remembered:\n",
        "previous_response_not_found",
    ),
    "a turn on a WebSocket misses the one before": Fault(
        "http/socket.py",
        "self._remembered[creation.id] = turn = [*creation.history, *new]",
        "self._remembered[creation.id] = turn = new",
        "without what was said before",
    ),
    "a turn on a WebSocket goes on without its client": Fault(
        "http/socket.py",
        "            self._driver.stop(ClientLeftError())\n",
        "            pass\n",
        "is worked on without its client",
        wanted=("talk",),
        first=399,
    ),
    "a summary is made again at a takeover": Fault(
        "app/responses/create.py",
        "    if accepted.compact_from is not None:\n",
        "    if False:\n",
        "is summarised again",
        wanted=("background", "kill"),
        first=1270,
    ),
    "the model is not shown a summary": Fault(
        "apis/responses/history.py",
        "*(item for item in items[:place] if _is_kept_verbatim(item)), summarizing, *items[place:]",
        "*(item for item in items[:place] if _is_kept_verbatim(item)), *items[place:]",
        "forgot",
    ),
    "what is sealed is anyone's": Fault(
        "apis/sealing.py",
        "return [_VERSION.encode(), owner.encode()]",
        "return [_VERSION.encode()]",
        "is taken from another key|sees data of",
        wanted=("compact",),
        first=302,
    ),
    "what was said before the last answer is forgotten": Fault(
        "app/responses/history.py",
        "return _payloads(await store.responses.history(owner, response_id))",
        "return _payloads(await store.responses.history(owner, response_id))[-2:]",
        "without what was said before|is told 500|is failed, not completed",
    ),
    "background work fails when its server stops": Fault(
        "run/endings.py",
        "EngineNotReadyError: Ending(ClientResult.ERROR, Stored.FAILED, background=Stored.UNCHANGED)",
        "EngineNotReadyError: Ending(ClientResult.ERROR, Stored.FAILED)",
        "is failed, not completed|engine_not_ready",
        wanted=("background", "stop"),
        first=138,
    ),
    "a client that does not read keeps its server from stopping": Fault(
        "http/server.py",
        "async with asyncio.timeout(LAST_BYTES_SECONDS):",
        "async with asyncio.timeout(None):",
        "does not stop",
        wanted=("stop", "pauses"),
        first=324,
    ),
    "a writer that is cancelled goes on": Fault(
        "app/log_writer.py",
        "async with asyncio.timeout(FOREGROUND_TICK - TICK):\n"
        "                    await self._background_ready.wait()",
        "await asyncio.wait_for(self._background_ready.wait(), FOREGROUND_TICK - TICK)",
        "does not stop",
        wanted=("stop", "background"),
        first=8440,
    ),
    "a conversation forgets what was said to a server that crashed": Fault(
        "app/responses/record.py",
        "else await _input_of(store, record)",
        "else ()",
        "without what was said before",
        wanted=("converse",),
        first=2549,
    ),
    "a WebSocket is closed twice": Fault(
        "http/protocol.py",
        "        if self.transport.is_closing():\n            return\n        if self.handshake_complete",
        "        if self.handshake_complete",
        "connection is closing",
        wanted=("talk", "stop"),
        first=364,
    ),
    "what is not to be stored is stored": Fault(
        "app/responses/create.py",
        "        if self.stored:\n",
        "        if True:\n",
        "is stored, and should not be",
    ),
}


def plant(fault: Fault, folder: Path) -> Path:
    """A copy of the source with this fault. Raises ValueError unless there is exactly one such place."""
    source = folder / "src"
    compiled = f"{Path(fault.file).stem}.*.pyc"  # all but this: else Python compiles everything anew
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns(compiled))
    file = source / "antiphon" / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise ValueError(f"The fault in {fault.file} has to be described anew.")
    file.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    return source


def environment(source: Path) -> dict[str, str]:
    """The environment for `python -m simulation` with this source."""
    return {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}


def search(fault: Fault) -> tuple[str, ...]:
    """The arguments of `python -m simulation` to find a fault."""
    wanted = ("--with", *fault.wanted) if fault.wanted else ()
    return ("--from", str(fault.first), *wanted, "--seeds", str(SEEDS), "--processes", "1")


def finding(said: str) -> tuple[int, str]:
    """The seed of the violation, and its message; -1 if there is none."""
    found = re.search(r"^seed (\d+): (.*)$", said, re.MULTILINE)
    return (int(found[1]), found[2]) if found else (-1, said)


def main(beginning: str = "") -> None:
    """Print for each fault after how many simulations, and seconds of a processor, it is found."""
    sought = {name: fault for name, fault in FAULTS.items() if name.startswith(beginning)}
    total = 0.0
    for name, fault in sought.items():
        with TemporaryDirectory() as folder:
            source = plant(fault, Path(folder))
            results = [_look(source, fault, first) for first in range(0, TIMES * SEEDS, SEEDS)]
        seconds = sum(used for used, *_ in results) / TIMES
        total += seconds
        tries = ", ".join("not" if seed < 0 else str(seed % SEEDS + 1) for _, seed, _ in results)
        print(f"{seconds:6.1f} s  {name}: found in simulation {tries}: {results[0][2][:120]}", flush=True)
        if wrong := [said for *_, said in results if not re.search(fault.found, said)]:
            print(f"          otherwise than expected: {wrong[0][:300]}")
    print(f"{len(sought) / total * 60:.0f} faults a minute of one processor")


def _look(source: Path, fault: Fault, first: int) -> tuple[float, int, str]:
    """The time of a search, and its result."""
    before = _used()
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "simulation", *search(fault), "--from", str(first)],
        cwd=ROOT,
        env=os.environ | environment(source),
        capture_output=True,
        text=True,
        check=False,
    )
    return _used() - before, *finding(done.stdout + done.stderr)


def _used() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
