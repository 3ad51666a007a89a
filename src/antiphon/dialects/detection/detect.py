"""Chooses the dialect of a model, and gives the reason.

A chat template that renders earlier calls shows how its model writes them. So the round trip has priority:
the dialect that decodes most of the rendered probe samples wins. Ties are broken by Hugging Face's
`response_template` (the dialect built from it, `hf`, or else the one with most of its markers in it), then
by the model's names, then by how many markers are rendered and how few are missing. For a template that
renders no calls there are only the tie-breakers; if they have no result either, `hermes` is chosen, whose
tool prompt describes its format to any model. If no dialect decodes the rendered calls, or if several are
equally good, a dialect is derived from the samples (`generic`). Both are reported, with the option that
overrides the choice.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.conversation_template import ConversationTemplate
from antiphon.core.items import Reasoning
from antiphon.dialects.detection import generic
from antiphon.dialects.detection.samples import ProbeSamples, collect_samples
from antiphon.dialects.detection.scorers import (
    ScorerResult,
    missing_markers,
    opening_markers,
    round_trip_score,
    score_markers,
    score_metadata,
    score_response_template,
    score_round_trip,
)
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.registry import DIALECTS, load
from antiphon.dialects.response_template import builder as hf
from antiphon.render.capabilities import TemplateCapabilities
from antiphon.render.renderer import CHATML, ChatTemplateRenderer

MIN_SCORE = 0.6
"""The share of the rendered calls that a dialect must decode to be chosen."""

OVERRIDE = "Choose another with --dialect NAME."


class Evidence(Struct, frozen=True):
    """The known properties of a model before it generates.

    `template` is the source of its chat template, or what takes its place. `names` are its names, file name
    and architecture; `bos` and `eos` the texts of its tokens;
    `response_template` is Hugging Face's, as JSON text.
    """

    template: str | ConversationTemplate | None = None
    names: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    response_template: str | None = None


class Detection(Struct, frozen=True):
    """A dialect, and why it was chosen.

    `tied` are dialects that fit equally well; `unmatched` says that the template renders calls that no
    dialect decodes.
    """

    dialect: Dialect
    reason: str
    scorers: tuple[ScorerResult, ...] = ()
    tied: tuple[str, ...] = ()
    unmatched: bool = False
    capabilities: TemplateCapabilities | None = None

    @property
    def name(self) -> str:
        """The dialect's canonical name."""
        return self.dialect.names[0]

    @property
    def doubtful(self) -> bool:
        """The choice should be checked by a person."""
        return self.unmatched or bool(self.tied)


def choose(name: str | None, evidence: Evidence, reasoning_tags: tuple[str, str] | None = None) -> Detection:
    """The dialect that a user named, or else the one that fits the evidence best; with these tags, if given.

    Raises EngineError if there is no dialect of that name, or if a template cannot be used.
    """
    detection = detect(evidence) if name is None else _load_named(name, evidence)
    if reasoning_tags is None:
        return detection
    return replace(detection, dialect=detection.dialect.with_reasoning_tags(*reasoning_tags))


def _load_named(name: str, evidence: Evidence) -> Detection:
    """The dialect that a user named."""
    dialect = _with_tag_suffix(load(name, evidence.response_template), evidence)
    if name in hf.NAMES and (detection := detect(evidence)).name == hf.NAME:
        dialect = detection.dialect  # completed with properties of its family
    return Detection(dialect, "It was named with --dialect.")


def detect(evidence: Evidence, dialects: Sequence[Dialect] = DIALECTS) -> Detection:
    """Score every dialect, and choose the best."""
    renderer = _renderer(evidence)
    samples = collect_samples(renderer)
    dialects = [dialect.with_tag_suffix(samples.written) for dialect in dialects]
    dialects += hf.build_if_supported(evidence.response_template)
    ranking = _Ranking(samples, evidence, dialects)
    winner = ranking.by_calls() if samples.calls else ranking.without_calls(renderer.capabilities)
    return Detection(
        _with_fitting_reasoning(winner.dialect, samples, dialects),
        *(winner.reason, ranking.scorers, winner.tied, winner.unmatched, renderer.capabilities),
    )


def _with_tag_suffix(dialect: Dialect, evidence: Evidence) -> Dialect:
    """The dialect with the suffix that this template adds to its tags."""
    if dialect.suffix is None:
        return dialect
    renderer = _renderer(evidence)
    return dialect.with_tag_suffix(collect_samples(renderer).written)


def _renderer(evidence: Evidence) -> ChatTemplateRenderer:
    """The renderer of samples. A model without a template is assumed to know ChatML, as most do."""
    source = CHATML if evidence.template is None else evidence.template
    return ChatTemplateRenderer(source, bos=evidence.bos, eos=evidence.eos, tool_prompt=None)


class _Winner(Struct, frozen=True):
    dialect: Dialect
    reason: str
    tied: tuple[str, ...] = ()
    unmatched: bool = False


class _Ranking:
    """The scores of all dialects on one template, and the rules that rank them."""

    def __init__(self, samples: ProbeSamples, evidence: Evidence, dialects: Sequence[Dialect]) -> None:
        self._samples = samples
        self._source = evidence.template if isinstance(evidence.template, str) else ""
        self._dialects = dialects
        self._markers = score_markers(samples, dialects)
        self._answers = score_round_trip(samples.answers, dialects)
        self._calls = score_round_trip(samples.calls, dialects)
        self._names = score_metadata(evidence.names, dialects)
        self._response = score_response_template(evidence.response_template, dialects)
        self.scorers = (self._markers, self._answers, self._names, self._response)

    def by_calls(self) -> _Winner:
        """The dialect that decodes most of the calls."""
        best, *others = sorted(self._dialects, key=self._rank, reverse=True)
        score = self._calls.score(best)
        derived = generic.build(self._samples)
        derived_score = round_trip_score(self._samples.calls, derived) if derived else 0.0
        if score < MIN_SCORE or derived_score > score + (1 - MIN_SCORE) / 2:
            return self._unmatched(derived, derived_score, best, score)
        tied = [dialect for dialect in others if self._rank(dialect) == self._rank(best)]
        if any(dialect.grammar != best.grammar for dialect in tied):
            names = tuple(dialect.names[0] for dialect in (best, *tied))
            fallback = derived if derived and derived_score >= score else best
            why = f"{_listed(names)} decode the template's calls equally well."
            return _Winner(fallback, why, tied=names)
        why = f"It decodes {_percent(score)} of the calls that the template renders{self._agreeing(best)}."
        return _Winner(self._completed_from(best, others[0]), why)

    def without_calls(self, capabilities: TemplateCapabilities) -> _Winner:
        """The dialect with other evidence, or the one whose format a tool prompt can describe."""
        lacking = "The template renders no calls" if self._source else "There is no chat template"
        with_calls = [dialect for dialect in self._dialects if dialect.calls is not TEXT]
        usable = [dialect for dialect in with_calls if capabilities.tools or dialect.tool_prompt]
        marked = [dialect for dialect in usable if capabilities.tools and self._is_known(dialect)]
        named = [dialect for dialect in usable if dialect.names[0] in self._names.best]
        indications = (
            (self._best_by_response_template(usable), "the response template indicates"),
            (marked, "its text has markers of"),
            (named, "the model's names indicate"),
        )
        for fitting, what in indications:
            if fitting:
                best = max(fitting, key=lambda dialect: (self._count_markers(dialect), *self._rank(dialect)))
                return _Winner(best, f"{lacking}, but {what} {best.names[0]}.")
        return _Winner(HERMES, f"{lacking}, so a format is described that most models know.")

    def _best_by_response_template(self, dialects: Sequence[Dialect]) -> list[Dialect]:
        """The dialects that match the response template best, none if nothing matches."""
        best = max(map(self._response.score, dialects), default=0.0)
        return [dialect for dialect in dialects if best and self._response.score(dialect) == best]

    def _completed_from(self, best: Dialect, next_best: Dialect) -> Dialect:
        """The best dialect. `hf` is completed from a family that decodes the calls as well.

        A response template does not say how ids are made or how reasoning is ended.
        """
        if best.names[0] != hf.NAME or self._calls.score(next_best) < self._calls.score(best):
            return best
        return replace(next_best, names=best.names, calls=best.calls, reasoning=best.reasoning)

    def _rank(self, dialect: Dialect) -> tuple[float, ...]:
        return (
            self._calls.score(dialect),
            self._answers.score(dialect),
            self._response.score(dialect),
            self._names.score(dialect),
            self._markers.score(dialect),
            *(-number for number in missing_markers(dialect, self._source)),
        )

    def _is_known(self, dialect: Dialect) -> bool:
        """The template's source has most of the markers of the dialect's calls, an opening one included."""
        markers = dialect.calls.markers
        opens = any(mark in self._source for mark in opening_markers(dialect) & markers)
        return opens and self._count_markers(dialect) * 2 >= len(markers)

    def _count_markers(self, dialect: Dialect) -> int:
        """How many markers of the dialect's calls the template's source has."""
        return sum(mark in self._source for mark in dialect.calls.markers)

    def _unmatched(
        self, derived: Dialect | None, derived_score: float, best: Dialect, score: float
    ) -> _Winner:
        why = f"No dialect decodes the template's calls; {best.names[0]} decodes {_percent(score)}."
        if derived is None or derived_score <= score:
            winner = best if score else HERMES
            return _Winner(winner, f"{why} None could be derived from what it renders.", unmatched=True)
        return _Winner(derived, f"{why} One was derived from what it renders.", unmatched=True)

    def _agreeing(self, best: Dialect) -> str:
        agreeing = [scorer for scorer in (self._names, self._response) if scorer.ranks_first(best)]
        return "".join(f"; its score by {scorer.name} is the best, too" for scorer in agreeing)


def _with_fitting_reasoning(dialect: Dialect, samples: ProbeSamples, dialects: Sequence[Dialect]) -> Dialect:
    """The same calls with another dialect's reasoning, if its own does not match the rendered text."""
    reasoning = [
        sample for sample in samples.answers if any(isinstance(item, Reasoning) for item in sample.items)
    ]
    without_calls = [sample for sample in reasoning if not sample.calls]
    if not without_calls or dialect.has_own_reasoning or round_trip_score(without_calls, dialect) == 1:
        return dialect
    derived = generic.build(samples)
    others = [other for other in (*dialects, *([derived] if derived else ())) if other.reasoning]
    return max(
        (dialect, *map(dialect.with_reasoning_of, others)),
        # Samples without calls first: those with calls also depend on how the calls are decoded.
        key=lambda other: (round_trip_score(without_calls, other), round_trip_score(reasoning, other)),
    )


def _percent(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
