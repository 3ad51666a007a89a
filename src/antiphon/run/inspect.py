"""What `antiphon inspect` tells of a model or chat template: what it can do, and its dialect.

Nothing is loaded: of a GGUF file, only the header is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from antiphon.core.errors import EngineError
from antiphon.dialects.detection.detect import OVERRIDE, Detection, Evidence, detect
from antiphon.dialects.detection.votes import Vote
from antiphon.engines.gguf import names, read_metadata
from antiphon.engines.models import resolve, response_template

TEMPLATES = frozenset({".jinja", ".jinja2", ".j2", ".txt"})
"""The endings of files that are chat templates. All else is a model."""

SHOWN = 4
"""How many dialects, and how many things seen, a vote lists for people."""


class Report(Struct, frozen=True):
    """What there is to tell. `traits` are those of the template, see `render/traits.py`."""

    source: str
    dialect: str
    reason: str
    tied: tuple[str, ...]
    missed: bool
    markers: tuple[str, ...]
    votes: tuple[Vote, ...]
    traits: Mapping[str, Any]
    override: str = OVERRIDE


def inspect(target: str | None) -> Report:
    """Look at a template file, at a model named as for `serve`, or at the bundled model.

    Raises EngineError if there is no such file, or if it is none.
    """
    path = Path(target).expanduser() if target and Path(target).suffix in TEMPLATES else resolve(target)
    evidence = _of_template(path) if path.suffix in TEMPLATES else _of_model(path)
    return _report(str(path), detect(evidence))


def _of_template(path: Path) -> Evidence:
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"Cannot read the chat template {path}: {error}.") from error
    return Evidence(template, (path.stem,), response_template=response_template(path))


def _of_model(path: Path) -> Evidence:
    facts = read_metadata(path)
    template = facts.get("tokenizer.chat_template")
    return Evidence(
        str(template) if template else None, names(facts, path), response_template=response_template(path)
    )


def _report(source: str, detection: Detection) -> Report:
    return Report(
        source,
        detection.name,
        detection.reason,
        detection.tied,
        detection.missed,
        tuple(sorted({marker.strip() for marker in detection.dialect.grammar.markers})),
        detection.votes,
        structs.asdict(detection.traits) if detection.traits else {},
    )


def lines(report: Report) -> Iterator[str]:
    """The report for people."""
    doubt = " (doubtful)" if report.missed or report.tied else ""
    yield f"{report.source}"
    yield ""
    yield f"dialect   {report.dialect}{doubt}"
    yield f"why       {report.reason}"
    yield f"markers   {_few(report.markers)}"
    yield f"override  {report.override}"
    yield ""
    for vote in report.votes:
        scores = [f"{name} {score:.2f}" for name, score in vote.scores.items()]
        yield f"{vote.name}: {_few(scores)}"
        yield f"    saw {_few(vote.saw)}"
    yield ""
    yield "the template"
    for trait, value in report.traits.items():
        yield f"    {trait.replace('_', ' '):18}{ {True: 'yes', False: 'no'}.get(value, value) }"


def _few(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]).replace("\n", "\\n") + more if texts else "nothing"
