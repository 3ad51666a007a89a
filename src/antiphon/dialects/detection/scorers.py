"""The scorers by which a dialect is chosen. Each scores all dialects on one kind of evidence.

* markers: how many of a dialect's markers are in the rendered probe samples;
* round trip: how much of the samples a dialect decodes to the items they were rendered from;
* metadata: how well the model's names match the names of a family;
* response template: how many of a dialect's markers are in Hugging Face's
  `response_template`, where a tokenizer ships one, or whether it was built from it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.grammar import Span
from antiphon.core.items import FunctionCall, OutputItem, Reasoning, Status
from antiphon.decode.arguments.types import Schema
from antiphon.decode.decoder import Decoder, answer_header, state_after
from antiphon.decode.table import Table
from antiphon.dialects.detection.families import HINTS
from antiphon.dialects.detection.samples import SCHEMAS, ProbeSample, ProbeSamples
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.response_template.builder import NAME

WRONG_ARGUMENTS = 0.5
"""The score of a call whose name was decoded correctly and whose arguments were not."""

SPACED = 0.95
"""The score of a text with space around it that is not its own."""

MIN_MARKER = 3
"""Characters of the shortest marker that is counted: `>` occurs in any text."""

OWN_SCORE = 2.0
"""The score of the dialect built from the response template: above the 1.0 that others can reach."""

_STOP = Finish(FinishReason.STOP)
_END_TOKENS = re.compile(r"\s*(?:<[^<>]*>\s*)*")
"""End-of-turn tokens after a call. An engine does not return them."""
_ESCAPES = re.compile(r"\\([^A-Za-z0-9\s])")


class ScorerResult(Struct, frozen=True):
    """The result of one scorer: its `evidence`, and in `scores` how well each dialect fits it.

    Dialects with a score of 0 are left out.
    """

    name: str
    evidence: tuple[str, ...] = field(default=(), name="seen")  # as `antiphon inspect --json` calls it
    scores: Mapping[str, float] = {}

    @property
    def best(self) -> tuple[str, ...]:
        """The dialects with the highest score, none if there are no scores."""
        highest = max(self.scores.values(), default=0.0)
        return tuple(name for name, score in self.scores.items() if score == highest)

    def ranks_first(self, dialect: Dialect) -> bool:
        """Whether the dialect has the highest score."""
        return dialect.names[0] in self.best

    def score(self, dialect: Dialect) -> float:
        """The score of a dialect."""
        return self.scores.get(dialect.names[0], 0.0)


def score_markers(samples: ProbeSamples, dialects: Iterable[Dialect]) -> ScorerResult:
    """How many of a dialect's markers are in the rendered answers or the generation prompts."""
    written = "\n".join([*(sample.written for sample in samples.answers), *samples.generation_prompts])
    marks_by_dialect = {
        dialect.names[0]: {
            mark.strip() for mark in dialect.grammar.markers if _is_distinctive(mark) and mark in written
        }
        for dialect in dialects
    }
    scores = {name: float(len(marks)) for name, marks in marks_by_dialect.items()}
    return ScorerResult("markers", tuple(sorted(set().union(*marks_by_dialect.values()))), _positive(scores))


def score_round_trip(samples: Sequence[ProbeSample], dialects: Iterable[Dialect]) -> ScorerResult:
    """How much of the samples each dialect decodes correctly, from 0 to 1."""
    scores = {dialect.names[0]: round_trip_score(samples, dialect) for dialect in dialects}
    names = tuple(dict.fromkeys(sample.name for sample in samples))
    return ScorerResult("round trip", names, _positive(scores))


def score_metadata(names: Sequence[str], dialects: Iterable[Dialect]) -> ScorerResult:
    """How long a name of the family matches the model's names: qwen3coder scores higher than qwen3."""
    plain = [_normalized(name) for name in names]
    scores = {
        dialect.names[0]: float(max((len(hint) for hint in _hints(dialect) if _in(hint, plain)), default=0))
        for dialect in dialects
    }
    return ScorerResult("metadata", tuple(names), _positive(scores))


def score_response_template(template: str | None, dialects: Iterable[Dialect]) -> ScorerResult:
    """The share of a dialect's markers in a `response_template`, JSON text; `OWN_SCORE` if built from it."""
    texts = list(_strings(template)) if template else []
    joined = "\n".join(texts)
    marks = {dialect.names[0]: [mark.strip() for mark in dialect.grammar.markers] for dialect in dialects}
    scores = {
        name: sum(mark in joined for mark in markers) / len(markers)
        for name, markers in marks.items()
        if markers
    }
    scores |= {name: OWN_SCORE for name in scores if name == NAME}
    return ScorerResult("response template", tuple(texts), _positive(scores))


def round_trip_score(samples: Sequence[ProbeSample], dialect: Dialect) -> float:
    """How much of these samples a dialect decodes correctly, from 0 to 1."""
    if not samples:
        return 0.0
    table = Table(dialect.grammar)
    total = sum(_similarity(sample.items, decode_sample(sample, dialect, table)) for sample in samples)
    return round(total / len(samples), 3)


def decode_sample(
    sample: ProbeSample, dialect: Dialect, table: Table, tools: Mapping[str, Schema] = SCHEMAS
) -> tuple[OutputItem, ...]:
    """The items that the dialect decodes from a sample, started where a model would start."""
    header = answer_header(sample.generation_prompt, dialect.grammar)
    starts = sample.written.startswith(sample.generation_prompt)
    # A template may leave out the opening marker of earlier reasoning, which a new answer follows.
    tail = sample.generation_prompt[len(header) :] if starts or isinstance(sample.items[0], Reasoning) else ""
    state = state_after(table, tail) if header and tail else None
    decoder, fold = Decoder(table, state=state, tools=tools), Accumulator()
    text = sample.text_after(sample.generation_prompt if starts else header)
    for event in [*decoder.feed(Chunk(text)), *decoder.finish(_STOP)]:
        fold.push(event)
    return tuple(item for item in fold.output.items if isinstance(item, OutputItem))


def missing_markers(dialect: Dialect, source: str) -> tuple[int, int]:
    """How many markers a template's source lacks: of those that open calls, and of all."""
    opening, markers = opening_markers(dialect), dialect.grammar.markers
    return sum(mark not in source for mark in opening), sum(mark not in source for mark in markers)


def opening_markers(dialect: Dialect) -> frozenset[str]:
    """The markers by which calls start in plain text."""
    text = dialect.calls.states[dialect.calls.text]
    assert isinstance(text, Span)
    return frozenset({*text.on, *text.peek})


def _similarity(expected: Sequence[OutputItem], items: Sequence[OutputItem]) -> float:
    """The matches in order, divided by the longer of the two lists."""
    if len(items) > 1 and not isinstance(items[-1], FunctionCall) and _END_TOKENS.fullmatch(items[-1].text):
        items = items[:-1]
    matched, at = 0.0, 0
    for expected_item in expected:
        matches = ((_match(expected_item, item), n) for n, item in enumerate(items[at:], at))
        match, n = max(matches, key=lambda pair: (pair[0], -pair[1]), default=(0.0, at))
        if match:
            matched, at = matched + match, n + 1
    return matched / max(len(expected), len(items))


def _match(expected: OutputItem, item: OutputItem) -> float:
    if isinstance(expected, FunctionCall):
        if (
            not isinstance(item, FunctionCall)
            or item.name != expected.name
            or item.status is not Status.COMPLETED
        ):
            return 0.0
        return 1.0 if json.loads(item.arguments) == json.loads(expected.arguments) else WRONG_ARGUMENTS
    if type(item) is not type(expected) or item.text.strip() != expected.text:
        return 0.0
    return 1.0 if item.text == expected.text else SPACED


def _is_distinctive(marker: str) -> bool:
    """The marker is too long to occur by accident."""
    return len(marker.strip()) >= MIN_MARKER


def _hints(dialect: Dialect) -> Iterable[str]:
    return (_normalized(hint) for name in dialect.names for hint in HINTS.get(name, ()))


def _normalized(name: str) -> str:
    """Lower case, without dots and dashes."""
    return "".join(filter(str.isalnum, name.lower()))


def _in(hint: str, names: Iterable[str]) -> bool:
    return any(hint in name for name in names)


def _strings(template: str) -> Iterable[str]:
    """Every string in JSON text, patterns without their escapes; nothing if it is not JSON."""
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
    """The scores above 0, the highest first."""
    return dict(sorted(((n, s) for n, s in scores.items() if s > 0), key=lambda pair: -pair[1]))
