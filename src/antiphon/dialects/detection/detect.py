"""Chooses the dialect of a model, and says why.

A template that shows earlier calls shows how its model writes them. So the
round trip decides first: the dialect that reads back most of what the template
writes wins. Where several read the same, Hugging Face's `response_template`
tells: the dialect made of it (`hf`), or else the one that has most of its markers
there; then the model's names, then how many markers are there and how few are
missing. A template that shows no calls leaves the choice to the latter; if
those tell nothing, `hermes` is taken, whose tool prompt teaches its format to
models that know no other.

If no dialect reads what the template writes, or if several are equally good, a
dialect is made of what was seen (`generic`). Both are reported, with the way
to override.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.grammar import Kind, Span
from antiphon.core.items import Reasoning
from antiphon.dialects.detection import generic
from antiphon.dialects.detection.specimens import Specimen, Specimens, collect
from antiphon.dialects.detection.votes import (
    Vote,
    opening_markers,
    reading,
    unused,
    vote_markers,
    vote_metadata,
    vote_response_template,
    vote_round_trip,
)
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.registry import DIALECTS, find
from antiphon.dialects.response_template import build as hf
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.render.traits import Traits

ENOUGH = 0.6
"""Which share of the calls that a template writes a dialect must read back to be the right one."""

OVERRIDE = "Choose another with --dialect NAME."


class Evidence(Struct, frozen=True):
    """What there is to know about a model before it says anything.

    `names` are its names, file name and architecture; `bos` and `eos` the texts
    of its tokens; `response_template` the JSON of Hugging Face's.
    """

    template: str | None = None
    names: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    response_template: str | None = None


class Detection(Struct, frozen=True):
    """A dialect, and why it was chosen.

    `tied` are dialects that fit equally well; `missed` says that the template
    writes calls that no dialect reads.
    """

    dialect: Dialect
    reason: str
    votes: tuple[Vote, ...] = ()
    tied: tuple[str, ...] = ()
    missed: bool = False
    traits: Traits | None = None

    @property
    def name(self) -> str:
        """The dialect's canonical name."""
        return self.dialect.names[0]

    @property
    def doubtful(self) -> bool:
        """Someone should look at this."""
        return self.missed or bool(self.tied)


def choose(name: str | None, evidence: Evidence) -> Detection:
    """The dialect that a user named, or else the one that the evidence shows.

    Raises EngineError if there is no dialect of that name, or if a template cannot be used.
    """
    if name is None:
        return detect(evidence)
    dialect = _spelled(find(name, evidence.response_template), evidence)
    if name == hf.NAME and (found := detect(evidence)).name == name:
        dialect = found.dialect  # with what is known of its family
    return Detection(dialect, "It was named.")


def detect(evidence: Evidence, dialects: Sequence[Dialect] = DIALECTS) -> Detection:
    """Let everything vote that tells of a model's format, and count."""
    renderer = ChatTemplateRenderer(evidence.template, bos=evidence.bos, eos=evidence.eos, tool_prompt=None)
    specimens = collect(renderer)
    dialects = [dialect.spelled_as(specimens.written) for dialect in dialects]
    dialects += hf.offered(evidence.response_template)
    ballot = _Ballot(specimens, evidence, dialects)
    found = ballot.by_calls() if specimens.calls else ballot.without_calls(renderer.traits)
    return Detection(
        _with_thoughts(found.dialect, specimens, dialects),
        *(found.reason, ballot.votes, found.tied, found.missed, renderer.traits),
    )


def _spelled(dialect: Dialect, evidence: Evidence) -> Dialect:
    """The dialect as this template spells it."""
    if dialect.suffix is None:
        return dialect
    renderer = ChatTemplateRenderer(evidence.template, bos=evidence.bos, eos=evidence.eos, tool_prompt=None)
    return dialect.spelled_as(collect(renderer).written)


class _Found(Struct, frozen=True):
    dialect: Dialect
    reason: str
    tied: tuple[str, ...] = ()
    missed: bool = False


class _Ballot:
    """The votes on one template, and the rules by which they are counted."""

    def __init__(self, specimens: Specimens, evidence: Evidence, dialects: Sequence[Dialect]) -> None:
        self._specimens = specimens
        self._source = evidence.template or ""
        self._dialects = dialects
        self._markers = vote_markers(specimens, dialects)
        self._answers = vote_round_trip(specimens.answers, dialects)
        self._calls = vote_round_trip(specimens.calls, dialects)
        self._names = vote_metadata(evidence.names, dialects)
        self._response = vote_response_template(evidence.response_template, dialects)
        self.votes = (self._markers, self._answers, self._names, self._response)

    def by_calls(self) -> _Found:
        """The dialect that reads back most."""
        best, *others = sorted(self._dialects, key=self._rank, reverse=True)
        read = self._calls.of(best)
        made = generic.build(self._specimens)
        made_reads = reading(self._specimens.calls, made) if made else 0.0
        if read < ENOUGH or made_reads > read + (1 - ENOUGH) / 2:
            return self._miss(made, made_reads, best, read)
        tied = [each for each in others if self._rank(each) == self._rank(best)]
        if any(each.grammar != best.grammar for each in tied):
            names = tuple(each.names[0] for each in (best, *tied))
            fallback = made if made and made_reads >= read else best
            return _Found(fallback, f"{_listed(names)} read the template's calls equally well.", tied=names)
        why = f"It reads {_percent(read)} of the calls that the template writes{self._also(best)}."
        return _Found(self._in_family(best, others[0]), why)

    def without_calls(self, traits: Traits) -> _Found:
        """The dialect that something else tells of, or the one that can be taught."""
        callers = [each for each in self._dialects if each.calls is not TEXT]
        teachable = [each for each in callers if traits.tools or each.tool_prompt]
        told = (
            (self._told(teachable), "the response template"),
            ([each for each in callers if traits.tools and self._is_known(each)], "its text"),
            ([each for each in teachable if each.names[0] in self._names.favourites], "the model's names"),
        )
        for fitting, what in told:
            if fitting:
                best = max(fitting, key=lambda each: (self._known(each), *self._rank(each)))
                return _Found(best, f"The template shows no calls, but {what} told of {best.names[0]}.")
        return _Found(HERMES, "The template shows no calls, so a format is taught that most models know.")

    def _told(self, dialects: Sequence[Dialect]) -> list[Dialect]:
        """Those of which the response template tells most, none if it tells nothing."""
        best = max(map(self._response.of, dialects), default=0.0)
        return [each for each in dialects if best and self._response.of(each) == best]

    def _in_family(self, best: Dialect, next_best: Dialect) -> Dialect:
        """The best dialect; if it was made, with all else of a family that reads calls as well as it does."""
        if best.names[0] != hf.NAME or self._calls.of(next_best) < self._calls.of(best):
            return best
        return replace(next_best, names=best.names, calls=best.calls, thoughts=best.thoughts)

    def _rank(self, dialect: Dialect) -> tuple[float, ...]:
        return (
            self._calls.of(dialect),
            self._answers.of(dialect),
            self._response.of(dialect),
            self._names.of(dialect),
            self._markers.of(dialect),
            *(-number for number in unused(dialect, self._source)),
        )

    def _is_known(self, dialect: Dialect) -> bool:
        """The template holds most of the markers of the dialect's calls, one that opens them included."""
        markers = dialect.calls.markers
        opens = any(mark in self._source for mark in opening_markers(dialect) & markers)
        return opens and self._known(dialect) * 2 >= len(markers)

    def _known(self, dialect: Dialect) -> int:
        """How many markers of the dialect's calls the template holds."""
        return sum(mark in self._source for mark in dialect.calls.markers)

    def _miss(self, made: Dialect | None, made_reads: float, best: Dialect, read: float) -> _Found:
        tells = f"No dialect reads the template's calls; the best, {best.names[0]}, {_percent(read)} of them."
        if made is None or made_reads <= read:
            winner = best if read else HERMES
            return _Found(winner, f"{tells} Their form is not understood.", missed=True)
        return _Found(made, f"{tells} One was made of what the template writes.", missed=True)

    def _also(self, best: Dialect) -> str:
        votes = [vote for vote in (self._names, self._response) if vote.favours(best)]
        return "".join(f"; the {vote.name} says so, too" for vote in votes)


def _with_thoughts(dialect: Dialect, specimens: Specimens, dialects: Sequence[Dialect]) -> Dialect:
    """The same calls with thoughts that it reads, if it does not read those that the template writes."""
    thoughts = [each for each in specimens.answers if any(isinstance(item, Reasoning) for item in each.items)]
    quiet = [each for each in thoughts if not each.calls]
    if not quiet or _thinks_itself(dialect) or reading(quiet, dialect) == 1:
        return dialect
    made = generic.build(specimens)
    others = [each for each in (*dialects, *([made] if made else ())) if each.thoughts]
    return max((dialect, *map(dialect.thinking_as, others)), key=lambda each: _thinks(each, quiet, thoughts))


def _thinks_itself(dialect: Dialect) -> bool:
    """Its thoughts are part of its grammar, and not to be replaced."""
    states = dialect.calls.states.values()
    return any(isinstance(state, Span) and state.kind is Kind.REASONING for state in states)


def _thinks(dialect: Dialect, quiet: Sequence[Specimen], all_: Sequence[Specimen]) -> tuple[float, float]:
    return reading(quiet, dialect), reading(all_, dialect)


def _percent(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
