"""`python bench/decode.py`: the cost of decoding in each dialect, in process, and its growth with the length.

    python bench/decode.py --dialect all --json

The text of a dialect consists of the answers in its case file: its reasoning, then its
texts and calls, repeated. A token has four characters, or is a marker. Growth is the
cost per token of the long text divided by that of the short one; above 1, text is
read more than once.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS, find
from bench.measure import Figure, take_turns
from tests.contracts.dialect import FOLDER, TOOLS, answers

LENGTHS = (1024, 16384)
"""Tokens."""

_REASONING = ("reasoning",)
_CALLS = ("single", "parallel", "nested", "typed", "newlines", "text_after", "text")
_STOP = Finish(FinishReason.STOP)


class Row(Struct, frozen=True):
    """One dialect: µs of CPU per token at both lengths, and how the longer compares with the shorter."""

    dialect: str
    short: Figure
    long: Figure
    growth: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dialect", default="all")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    known = [dialect for dialect in DIALECTS if (FOLDER / f"{dialect.names[0]}.toml").exists()]
    dialects = known if options.dialect == "all" else [find(options.dialect)]
    rows = measure(dialects, options.rounds)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return 0
    print(f"{'µs per token':24}{'1k tokens':>12}{'16k tokens':>12}{'growth':>9}")
    for row in rows:
        print(f"{row.dialect:24}{row.short.best:12.2f}{row.long.best:12.2f}{row.growth:9.2f}")
    return 0


def measure(dialects: Sequence[Dialect], rounds: int = 5) -> list[Row]:
    """Every dialect at every length, in turns."""
    subjects: dict[tuple[str, int], tuple[Callable[[], object], int]] = {}
    for dialect in dialects:
        table, tokens = Table(dialect.grammar), _tokens(dialect)
        for length in LENGTHS:
            chunks = [Chunk(text, (Token(index, text),)) for index, text in enumerate(tokens[:length])]
            subjects[dialect.names[0], length] = (partial(_decode, table, chunks), length)
    figures = take_turns(subjects, rounds, LENGTHS[-1])
    return [_row(dialect.names[0], figures) for dialect in dialects]


def _row(name: str, figures: dict[tuple[str, int], Figure]) -> Row:
    short, long = (figures[name, length] for length in LENGTHS)
    return Row(name, short, long, round(long.best / short.best, 3))


def _decode(table: Table, chunks: list[Chunk]) -> None:
    decoder = Decoder(table, tools=TOOLS)
    for chunk in chunks:
        decoder.feed(chunk)
    decoder.finish(_STOP)


def _tokens(dialect: Dialect) -> list[str]:
    """The tokens of the longest text."""
    cases = answers(dialect.names[0])
    reasoning, calls = (
        [cases[name]["output"] for name in names if "output" in cases[name]] for names in (_REASONING, _CALLS)
    )
    markers = "|".join(map(re.escape, sorted(dialect.grammar.markers, key=len, reverse=True)))
    # A marker ends the text before it, so that it is a separate token.
    split = re.compile(rf"({markers or '(?!)'})")
    block = [token for text in calls for token in _cut(split, text + "\n")]
    tokens = [token for text in reasoning for token in _cut(split, text + "\n")]
    return tokens + block * (LENGTHS[-1] // len(block) + 1)


def _cut(split: re.Pattern[str], text: str) -> list[str]:
    parts = split.split(text)
    return [
        token
        for index, part in enumerate(parts)
        for token in ([part] if index % 2 else [part[at : at + 4] for at in range(0, len(part), 4)])
        if token
    ]


if __name__ == "__main__":
    sys.exit(main())
