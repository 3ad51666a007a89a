"""The deterministic simulation: it repeats itself, it finds known faults, and no new ones."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SEEDS = 30
NEW_SECONDS = 3


def simulate(*options: str, source: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    """Run `python -m simulation` on this source."""
    return subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "simulation", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_laws_hold() -> None:
    done = simulate("--seeds", str(SEEDS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{SEEDS} simulations")


def test_all_laws_hold_for_seeds_that_nobody_has_tried() -> None:
    done = simulate("--new", "--seconds", str(NEW_SECONDS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_simulation_every_time() -> None:
    assert simulate("--seed", "7").stdout == simulate("--seed", "7").stdout != simulate("--seed", "8").stdout


MUTATIONS = {
    "an event is dropped at a takeover": (
        "app/journal.py",
        "new = lines[known:] if known > 0 else lines",
        "new = lines[known + 1 :] if known > 0 else lines",
        "a reader gets event|has another number|never end|follows",
    ),
    "a lease is taken that has not run out": (
        "store/jobs.py",
        '"now": claim.now,',
        '"now": claim.now + 2.5,',
        "was taken while another server held it",
    ),
    "a slot is forgotten": (
        "engines/admission.py",
        "        self.running -= 1\n",
        "        self.running -= 1 if self.waiting else 0\n",
        "slots of the engine|is not answered|never end",
    ),
    "a reader misses an event": (
        "app/log_source.py",
        "after + 1 - entries[0].first",
        "after + 1 - entries[0].first + (after > 3)",
        "a reader gets event",
    ),
    "an approval is good for many calls": (
        "store/approvals.py",
        "return claimed in (None, claim.response_id)",
        "return True",
        "is run twice",
    ),
    "a call is run again after a takeover": (
        "run/tool_calls.py",
        "if number < self._context.calls_begun and not",
        "if number < 0 and not",
        "is run twice",
    ),
    "a call that was not approved is run": (
        "apis/responses/approvals.py",
        """        if item.flag_or_none("approve"):
""",
        """        if True:
""",
        "was not approved",
    ),
    "an answer is not in its conversation": (
        "store/responses.py",
        "conversations.append(transaction, at.conversation_id, end.conversation)",
        "conversations.append(transaction, at.conversation_id, end.conversation[:1])",
        "is not in its conversation",
    ),
    "keys are not looked at": (
        "store/responses.py",
        '(responses.c.owner == bindparam("owner"))\n_CREATE',
        '(bindparam("owner") != "")\n_CREATE',
        "is shown to another key|sees data of",
    ),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_known_fault_is_found(fault: str, tmp_path: Path) -> None:
    name, right, wrong, found = MUTATIONS[fault]
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    file = source / "antiphon" / name
    text = file.read_text(encoding="utf-8")
    assert text.count(right) == 1, "the fault has to be described anew"
    file.write_text(text.replace(right, wrong), encoding="utf-8")

    done = simulate("--seeds", "200", source=source)
    assert done.returncode == 1, done.stdout
    said = re.search(r"^seed (\d+): (.*)$", done.stdout, re.MULTILINE)
    assert said is not None
    assert re.search(found, said[2])
    again = simulate("--seed", said[1], source=source)
    assert said[2] in again.stderr
