"""Decodes malformed text in every dialect, and checks the guarantees of decoding.

    python fuzz/decode.py --seconds 30 --dialect all --seed 1

For any text, however it is split: decoding returns events, of which the last is
`Finished`; the events' raw text is the text, and their tokens are the tokens; a complete
call has a JSON object as arguments. Twice the text takes about twice the time: more than
`MAX_GROWTH` times in all of `TRIES` measurements is a failure.

Texts consist of a grammar's markers and other pieces, and of the answers in tests/cases,
split and mixed; long ones repeat a piece. A failure is printed with its seed, and the exit
status is 1.
"""

import argparse
import json
import random
import sys
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic, process_time

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.events import Event, Finished
from antiphon.core.items import Status
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS, find

MAX_GROWTH = 3.0
"""How many times the cost of half of a text the whole may cost."""
TRIES = 4
"""Measurements that must all exceed `MAX_GROWTH`, because other processes disturb them."""
LENGTH = 16_384
"""Characters of the shorter of the two texts that are compared."""

_CASES = Path(__file__).parent.parent / "tests" / "cases"
_ANY = [
    " ",
    "\n",
    "x",
    "é",
    "👋",
    '"',
    "'",
    "\\",
    "\\u00",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "|",
    ":",
    "=",
    ",",
]
_ANY += [
    "1",
    "-",
    "0.5",
    "null",
    "True",
    '"""',
    "f",
    "f(",
    "a=",
    '{"name": "f"',
    '"arguments": {',
    " to=f",
    "\x00",
]
_TOOLS = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
}


class Broken(Exception):
    """A guarantee that does not hold."""


class Subject:
    """A dialect, and the pieces of the texts for it."""

    def __init__(self, dialect: Dialect) -> None:
        self.name = dialect.names[0]
        self.tables = (Table(dialect.grammar), Table(dialect.grammar.without_calls()))
        self.starts = [None, *dialect.grammar.without_calls().states]
        self.pieces = sorted(dialect.grammar.markers) * 2 + _ANY
        path = _CASES / f"{self.name}.toml"
        cases = tomllib.loads(path.read_text()) if path.exists() else {}
        self.answers = [case["output"] for case in cases.values() if "output" in case]

    def text(self, rng: random.Random) -> str:
        """A short text."""
        if self.answers and rng.random() < 0.5:
            text = rng.choice(self.answers)
            for _ in range(rng.randrange(1, 5)):
                start = rng.randrange(len(text) + 1)
                text = text[:start] + rng.choice(self.pieces) + text[start + rng.choice((0, 0, 1, 4)) :]
            return text
        return "".join(rng.choices(self.pieces, k=rng.randrange(1, 40)))

    def long_text(self, rng: random.Random) -> tuple[str, str]:
        """A beginning, and what to repeat after it."""
        begin = rng.choice(self.answers) if self.answers else ""
        unit = "".join(rng.choices(self.pieces, k=rng.randrange(1, 4)))
        return begin[: rng.randrange(len(begin) + 1)], unit


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz for the given time. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="for all dialects together")
    parser.add_argument("--dialect", default="all")
    parser.add_argument("--seed", type=int, default=None, help="of the first text, to reproduce a failure")
    options = parser.parse_args(arguments)
    dialects = DIALECTS if options.dialect == "all" else (find(options.dialect),)
    seed = random.randrange(10**9) if options.seed is None else options.seed  # noqa: S311
    failed = 0
    for dialect in dialects:
        failed += not _fuzz(Subject(dialect), options.seconds / len(dialects), seed)
    return 1 if failed else 0


def _fuzz(subject: Subject, seconds: float, seed: int) -> bool:
    """One dialect, up to its first failure. Prints what happened."""
    end = monotonic() + seconds
    first = seed
    while seed == first or monotonic() < end:
        rng = random.Random(seed)  # noqa: S311
        try:
            if seed % 200:
                _check(subject, rng)
            else:
                _check_growth(subject, rng)
        except Exception as error:  # any exception is a failure
            print(f"{subject.name}: FAILED with --seed {seed}: {type(error).__name__}: {error}")
            return False
        seed += 1
    print(f"{subject.name}: {seed - first} texts from seed {first}")
    return True


def _check(subject: Subject, rng: random.Random) -> None:
    text, start, table = subject.text(rng), rng.choice(subject.starts), rng.choice(subject.tables)
    pieces = _cut(text, rng)
    finish = Finish(rng.choice(list(FinishReason)))
    events = _decode(table, start, pieces, finish)
    if "".join(event.raw for event in events) != text:
        raise Broken(f"text was lost or added: {text!r} in state {start}")
    if [token.id for event in events for token in event.tokens] != list(range(len(pieces))):
        raise Broken(f"tokens were lost or added: {text!r} in state {start}")
    folding = Accumulator()
    for event in events:
        folding.push(event)
    for call in folding.output.calls:
        if call.status is Status.COMPLETED and not isinstance(json.loads(call.arguments), dict):
            raise Broken(f"a complete call without an object: {text!r} in state {start}")


def _check_growth(subject: Subject, rng: random.Random) -> None:
    begin, unit = subject.long_text(rng)
    table, growth = subject.tables[0], 0.0
    for _ in range(TRIES):
        short, long = (_seconds(table, begin, unit, length) for length in (LENGTH, 2 * LENGTH))
        growth = long / short
        if growth <= MAX_GROWTH:
            return
    raise Broken(f"twice the text took {growth:.1f} times the time: {begin!r} and many times {unit!r}")


def _seconds(table: Table, begin: str, unit: str, length: int) -> float:
    pieces = [begin, *[unit] * (length // len(unit))]
    begun = process_time()
    _decode(table, None, pieces, Finish(FinishReason.STOP))
    return process_time() - begun


def _decode(table: Table, start: str | None, pieces: list[str], finish: Finish) -> list[Event]:
    decoder = Decoder(table, state=start, tools=_TOOLS)
    events: list[Event] = []
    for index, piece in enumerate(pieces):
        events += decoder.feed(Chunk(piece, (Token(index, piece),)))
    events += decoder.finish(finish)
    if not isinstance(events[-1], Finished):
        raise Broken("the last event is not Finished")
    return events


def _cut(text: str, rng: random.Random) -> list[str]:
    """The text in pieces: of one character, or split at random."""
    if rng.random() < 0.3:
        return list(text)
    borders = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(8))})
    return [text[a:b] for a, b in pairwise(borders)]


if __name__ == "__main__":
    sys.exit(main())
