"""The report of `antiphon inspect` on a model or chat template: its dialect, and what its template supports.

Nothing is loaded: of a GGUF file, only the header is read. How a model decides shows only when it is loaded.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from antiphon.core.errors import EngineError
from antiphon.dialects.detection.detect import OVERRIDE, Detection, Evidence, detect
from antiphon.dialects.detection.scorers import ScorerResult
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.own.writer import to_toml
from antiphon.engines.gguf import Value, names, read_metadata, task_of
from antiphon.engines.models import find_encoder, resolve, response_template
from antiphon.engines.registry import engine_for, options_of
from antiphon.run.loading import ServedModel
from antiphon.run.token_model import TokenModel

TEMPLATES = frozenset({".jinja", ".jinja2", ".j2", ".txt"})
"""Suffixes of chat template files. Any other file is a model."""

SHOWN = 3
"""The number of scores, and of pieces of evidence, that the table lists for one scorer."""

_SCORERS = {
    "markers": "number of the dialect's markers in rendered samples",
    "round trip": "share of the rendered samples that the dialect decodes correctly",
    "metadata": "letters of the family's name that match the model's names",
    "response template": "share of the dialect's markers in the tokenizer's response_template",
}
"""What the scores of each scorer mean."""

_CAPABILITIES: Mapping[str, tuple[str, str, str]] = {
    "content_parts": ("content as a string", "sent as a list of parts", "rendered"),
    "system": ("a system message first", "rendered", "merged into the first user message"),
    "later_system": (
        "a second system message",
        "rendered",
        "merged into the first, or a user message",
    ),
    "developer": ("a developer message", "rendered", "sent as a system message"),
    "alternating_roles": ("two messages of one role in a row", "merged into one message", "rendered"),
    "user_first": ("an assistant message first", "an empty user message is inserted", "rendered"),
    "answer_after_results": ("a user message after a result", "an empty answer is inserted", "rendered"),
    "tools": ("functions in `tools`", "rendered", "described in the system message, if at all"),
    "tools_undefined": ("`tools` set to None", "left undefined", "accepted"),
    "calls": ("an earlier call", "rendered", "written into the text of the answer"),
    "results": ("the result of a call", "rendered", "sent as a user message"),
    "parallel_calls": ("two calls in one message", "rendered", "split into two messages"),
    "text_with_calls": ("text next to a call", "rendered", "split into two messages"),
    "content_required": ("an answer without text", "a space is inserted", "accepted"),
    "reasoning_required": ("an answer without reasoning", "empty reasoning is inserted", "accepted"),
    "null_content": ("a call with empty content", "sent with None as content", "accepted"),
    "short_ids": ("a call id of any form", "replaced by nine letters and digits", "accepted"),
    "reasoning": ("reasoning", "rendered, at least in the newest turn", "left out"),
    "media_in_results": ("media in the result of a call", "rendered", "sent as a user message after it"),
}
"""Capability of a template → what was tried, and what is done with and without the capability."""

_ARGUMENTS = {"object": "sent as an object", "any": "sent as an object, or unparsed", "text": "sent as JSON"}


class DecisionReport(Struct, frozen=True):
    """How a model decides: the `prefills` of its answers by kind of question, and how much they help.

    `label_mass` is the probability of labels after each prefill that was tried, by kind of question.
    """

    prompt_version: str
    prefills: Mapping[str, str]
    label_mass: Mapping[str, Mapping[str, float]]


class Report(Struct, frozen=True):
    """All findings. `capabilities` are those of the template, see `render/capabilities.py`."""

    source: str
    dialect: str
    reason: str
    tied: tuple[str, ...]
    unmatched: bool
    markers: tuple[str, ...]
    scorers: tuple[ScorerResult, ...]
    capabilities: Mapping[str, Any]
    override: str = OVERRIDE
    template: str | None = None
    """The chat template's source, if it was requested and exists."""
    task: str | None = None
    """The purpose of the model, if there is one: `generate`, `embed`, `rank`."""
    dialect_file: str | None = None
    """A derived dialect as the text of a file for `--dialect`."""
    encoder: str | None = None
    """The file that encodes images for the model, if it is in the model's folder."""
    decisions: DecisionReport | None = None
    """How the model decides, if that was requested."""


def inspect(target: str | None, *, template: bool = False, decisions: bool = False) -> Report:
    """Report on a template file, on a model named as for `serve`, or on the small model.

    With `template` the report has its source; for `decisions` the model is loaded. Raises EngineError if the
    file is missing or invalid.
    """
    path = Path(target).expanduser() if target and Path(target).suffix in TEMPLATES else resolve(target)
    if path.suffix in TEMPLATES:
        evidence, task, encoder = _of_template(path), None, None
        if decisions:
            raise EngineError(f"{path} is a chat template, but decisions need a model. Name a model.")
    else:
        facts, beside = read_metadata(path), find_encoder(path)
        evidence, task = _of_model(path, facts), task_of(facts)[0].value
        encoder = beside.name if beside else None
    report = _report(str(path), detect(evidence), _source(evidence) if template else None)
    decides = asyncio.run(_decisions(path)) if decisions else None
    return structs.replace(report, task=task, encoder=encoder, decisions=decides)


async def _decisions(path: Path) -> DecisionReport:
    """How the model in this file decides. Raises EngineError, RequestError."""
    served = ServedModel(options_of(engine_for(str(path)))(model=str(path)).build())  # type: ignore[call-arg]
    try:
        model = await served.load()
        if not isinstance(model, TokenModel):
            raise EngineError(
                f"The model {path.name} does not generate text, so it cannot decide. Name another model."
            )
        masses = await model.decider.masses()
        return DecisionReport(
            prompt_version=await model.decider.version(),
            prefills={str(kind): text for kind, text in (await model.decider.prefills()).items()},
            label_mass={
                prefill: {str(kind): mass for kind, mass in by_kind.items()}
                for prefill, by_kind in masses.items()
            },
        )
    finally:
        await served.stop()


def _of_template(path: Path) -> Evidence:
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise EngineError(f"Cannot read the chat template {path}: {why}.") from error
    return Evidence(template, (path.stem,), response_template=response_template(path))


def _of_model(path: Path, facts: Mapping[str, Value]) -> Evidence:
    template = facts.get("tokenizer.chat_template")
    return Evidence(
        str(template) if template else None, names(facts, path), response_template=response_template(path)
    )


def _source(evidence: Evidence) -> str | None:
    """The source of a chat template."""
    return evidence.template if isinstance(evidence.template, str) else None


def _report(source: str, detection: Detection, template: str | None) -> Report:
    return Report(
        source=source,
        dialect=detection.name,
        reason=detection.reason,
        tied=detection.tied,
        unmatched=detection.unmatched,
        markers=tuple(sorted({marker.strip() for marker in detection.dialect.grammar.markers})),
        scorers=detection.scorers,
        capabilities=structs.asdict(detection.capabilities) if detection.capabilities else {},
        template=template,
        dialect_file=_file(detection.dialect) if detection.dialect.call_format else None,
    )


def _file(dialect: Dialect) -> str:
    """A derived dialect as a file, which has its name from the file."""
    text = to_toml(dialect)
    return text.removeprefix(f'name = "{dialect.names[0]}"').lstrip()


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    doubt = " (doubtful)" if report.unmatched or report.tied else ""
    yield f"source    {report.source}"
    if report.task is not None:
        yield f"task      {report.task}"
        yield f"images    {report.encoder or 'refused: no encoder (--mmproj) next to the model'}"
    yield f"dialect   {report.dialect}{doubt}"
    yield f"reason    {report.reason}"
    yield f"markers   {_few(report.markers)}"
    yield f"override  {report.override}"
    if report.dialect_file is not None:
        yield ""
        yield "This dialect was derived. As a file, to be edited, for --dialect FILE.toml:"
        yield ""
        yield from report.dialect_file.splitlines()
    if report.decisions is not None:
        yield ""
        yield from _decision_lines(report.decisions)
    if report.template is not None:
        yield ""
        yield "The chat template:"
        yield ""
        yield from report.template.splitlines()
    yield ""
    yield "Why this dialect was chosen: how well each one fits. The next table explains the scores."
    yield ""
    yield from table(("scorer", "best scores", "evidence"), map(_scorer, report.scorers))
    yield ""
    yield from table(("scorer", "meaning of a score"), _SCORERS.items())
    yield ""
    yield "What was tried with the chat template, whether it works, and what Antiphon does."
    yield ""
    yield from table(
        ("capability of the template", "found", "tried", "so it is"),
        (_capability(*capability) for capability in report.capabilities.items()),
    )


def _decision_lines(report: DecisionReport) -> Iterator[str]:
    yield f"How probable labels are after what may begin an answer (prompts {report.prompt_version})."
    yield "The one in use is marked with a star."
    yield ""
    kinds = [*report.prefills]
    rows = [
        [
            repr(prefill),
            *(f"{masses[kind]:.2f}{'*' if report.prefills[kind] == prefill else ''}" for kind in kinds),
        ]
        for prefill, masses in report.label_mass.items()
    ]
    yield from table(("begins with", *kinds), rows)


def _scorer(result: ScorerResult) -> tuple[str, ...]:
    scores = [f"{name} {score:.2f}" for name, score in result.scores.items()]
    return result.name, _few(scores), _few(result.evidence)


def _capability(name: str, value: Any) -> tuple[str, ...]:
    words = name.replace("_", " ")
    if name == "arguments":
        return words, value, "arguments of an earlier call", _ARGUMENTS[value]
    if name == "efforts":
        efforts = ", ".join(f"{effort} becomes {nearest}" for effort, nearest in value.items())
        return words, efforts or "any", "each reasoning effort", "others become the nearest that it takes"
    if name == "media":
        kinds = ", ".join(f"{kind} as {placeholder}" for kind, placeholder in value.items())
        return words, kinds or "none", "media as parts of a message", "others are written into the text"
    if name == "kept_reasoning":
        shown = "never" if value is None else ", ".join(f"{key}={set_!r}" for key, set_ in value.items())
        return words, shown or "always", "reasoning of earlier turns", "shown with these variables"
    tried, present, absent = _CAPABILITIES[name]
    return (words, "yes", tried, present) if value else (words, "no", tried, absent)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines with the cells of the rows in columns."""
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _few(texts: Sequence[str]) -> str:
    remainder = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]).replace("\n", "\\n") + remainder if texts else "none"
