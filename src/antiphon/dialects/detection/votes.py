"""The votes by which a dialect is chosen: each looks at a template or model in one way.

* markers: which dialects' markers stand in answers that the template writes;
* round trip: which dialects read back what those answers mean;
* metadata: which family the model's names tell;
* response template: which dialect is made of Hugging Face's `response_template`,
  where a tokenizer ships one, and whose markers it names.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.fold import Fold
from antiphon.core.grammar import Span
from antiphon.core.items import FunctionCall, OutputItem, Reasoning, Status
from antiphon.decode.arguments.types import Schema
from antiphon.decode.decoder import Decoder, header_of, state_after
from antiphon.decode.table import Table
from antiphon.dialects.detection.families import HINTS
from antiphon.dialects.detection.specimens import SCHEMAS, Specimen, Specimens
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.response_template.build import NAME

WRONG_ARGUMENTS = 0.5
"""What a call counts whose name was read, but whose arguments came out differently."""

MIN_MARKER = 3
"""Characters of the shortest marker whose presence tells something: `>` is everywhere."""

OWN = 2.0
"""What the dialect that is made of a response template has in its vote: more than any other can have."""

_STOP = Finish(FinishReason.STOP)
_LEFTOVERS = re.compile(r"\s*(?:<[^<>]*>\s*)*")
"""Tokens after a call that end the turn: an engine hides them."""
_ESCAPES = re.compile(r"\\([^A-Za-z0-9\s])")


class Vote(Struct, frozen=True):
    """One way to look at a model. `saw` is what there was to see, `scores` how well each dialect fits it.

    Dialects that do not fit at all have no score. `favourites` are the best, none if nothing tells.
    """

    name: str
    saw: tuple[str, ...] = ()
    scores: Mapping[str, float] = {}

    @property
    def favourites(self) -> tuple[str, ...]:
        """The dialects with the best score."""
        best = max(self.scores.values(), default=0.0)
        return tuple(name for name, score in self.scores.items() if score == best)

    def favours(self, dialect: Dialect) -> bool:
        """The dialect is one of the favourites."""
        return dialect.names[0] in self.favourites

    def of(self, dialect: Dialect) -> float:
        """The score of a dialect."""
        return self.scores.get(dialect.names[0], 0.0)


def vote_markers(specimens: Specimens, dialects: Iterable[Dialect]) -> Vote:
    """How many of a dialect's markers stand in written answers, or before new ones."""
    written = "\n".join([*(each.written for each in specimens.answers), *specimens.openings])
    seen = {
        dialect.names[0]: {
            mark.strip() for mark in dialect.grammar.markers if _tells(mark) and mark in written
        }
        for dialect in dialects
    }
    scores = {name: float(len(marks)) for name, marks in seen.items()}
    return Vote("markers", tuple(sorted(set().union(*seen.values()))), _positive(scores))


def vote_round_trip(specimens: Sequence[Specimen], dialects: Iterable[Dialect]) -> Vote:
    """How much of known answers each dialect reads back: 1 is all."""
    scores = {dialect.names[0]: reading(specimens, dialect) for dialect in dialects}
    return Vote("round trip", tuple(dict.fromkeys(each.name for each in specimens)), _positive(scores))


def vote_metadata(names: Sequence[str], dialects: Iterable[Dialect]) -> Vote:
    """The families that the names of a model tell. A longer match tells more: qwen3coder beats qwen3."""
    plain = [_letters(name) for name in names]
    scores = {
        dialect.names[0]: float(max((len(hint) for hint in _hints(dialect) if _in(hint, plain)), default=0))
        for dialect in dialects
    }
    return Vote("metadata", tuple(names), _positive(scores))


def vote_response_template(template: str | None, dialects: Iterable[Dialect]) -> Vote:
    """Which share of a dialect's markers are in a `response_template`, JSON text; its own counts `OWN`."""
    texts = list(_strings(template)) if template else []
    joined = "\n".join(texts)
    marks = {each.names[0]: [mark.strip() for mark in each.grammar.markers] for each in dialects}
    scores = {
        name: sum(mark in joined for mark in markers) / len(markers)
        for name, markers in marks.items()
        if markers
    }
    scores |= {name: OWN for name in scores if name == NAME}
    return Vote("response template", tuple(texts), _positive(scores))


def reading(specimens: Sequence[Specimen], dialect: Dialect) -> float:
    """How much of these answers a dialect reads back, from 0 to 1."""
    if not specimens:
        return 0.0
    table = Table(dialect.grammar)
    return round(
        sum(_alike(each.items, read(each, dialect, table)) for each in specimens) / len(specimens), 3
    )


def read(
    specimen: Specimen, dialect: Dialect, table: Table, tools: Mapping[str, Schema] = SCHEMAS
) -> tuple[OutputItem, ...]:
    """What the dialect makes of a written answer, begun where a model would begin it."""
    header = header_of(specimen.opening, dialect.grammar)
    begun = specimen.written.startswith(specimen.opening)
    # A history may leave out the words that open a thought; an answer goes on from them.
    tail = specimen.opening[len(header) :] if begun or isinstance(specimen.items[0], Reasoning) else ""
    state = state_after(table, tail) if header and tail else None
    decoder, fold = Decoder(table, state=state, tools=tools), Fold()
    text = specimen.behind(specimen.opening if begun else header)
    for event in [*decoder.feed(Chunk(text)), *decoder.finish(_STOP)]:
        fold.push(event)
    return tuple(item for item in fold.output.items if isinstance(item, OutputItem))


def unused(dialect: Dialect, source: str) -> tuple[int, int]:
    """How many markers that open the dialect's calls, and how many at all, a template does not know."""
    opening, markers = opening_markers(dialect), dialect.grammar.markers
    return sum(mark not in source for mark in opening), sum(mark not in source for mark in markers)


def opening_markers(dialect: Dialect) -> frozenset[str]:
    """The markers that lead from plain text to calls."""
    text = dialect.calls.states[dialect.calls.text]
    assert isinstance(text, Span)
    return frozenset({*text.on, *text.peek})


def _alike(expected: Sequence[OutputItem], items: Sequence[OutputItem]) -> float:
    """Which share of what was read is right, and of what was to be read."""
    if len(items) > 1 and not isinstance(items[-1], FunctionCall) and _LEFTOVERS.fullmatch(items[-1].text):
        items = items[:-1]
    matched, at = 0.0, 0
    for wanted in expected:
        found = ((_match(wanted, item), n) for n, item in enumerate(items[at:], at))
        match, n = max(found, key=lambda each: (each[0], -each[1]), default=(0.0, at))
        if match:
            matched, at = matched + match, n + 1
    return matched / max(len(expected), len(items))


def _match(wanted: OutputItem, item: OutputItem) -> float:
    if isinstance(wanted, FunctionCall):
        if (
            not isinstance(item, FunctionCall)
            or item.name != wanted.name
            or item.status is not Status.COMPLETED
        ):
            return 0.0
        return 1.0 if json.loads(item.arguments) == json.loads(wanted.arguments) else WRONG_ARGUMENTS
    return float(type(item) is type(wanted) and item.text.strip() == wanted.text)


def _tells(marker: str) -> bool:
    """The marker is long enough to be no accident."""
    return len(marker.strip()) >= MIN_MARKER


def _hints(dialect: Dialect) -> Iterable[str]:
    return (_letters(hint) for name in dialect.names for hint in HINTS.get(name, ()))


def _letters(name: str) -> str:
    """Without case, dots and dashes."""
    return "".join(filter(str.isalnum, name.lower()))


def _in(hint: str, names: Iterable[str]) -> bool:
    return any(hint in name for name in names)


def _strings(template: str) -> Iterable[str]:
    """Every string in JSON text, patterns without their escapes; no string if it is no JSON."""
    try:
        rest = [json.loads(template)]
    except (ValueError, RecursionError):
        return
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, str) and value.strip():
            yield _ESCAPES.sub(r"\1", value)


def _positive(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores above nothing, the best first."""
    return dict(sorted(((n, s) for n, s in scores.items() if s > 0), key=lambda each: -each[1]))
