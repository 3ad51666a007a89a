"""What a guard writes, or would write → a verdict."""

import math
from collections.abc import Mapping, Sequence

from antiphon.core.errors import EngineError
from antiphon.core.moderation import GuardVerdict
from antiphon.decide.probabilities import Reading, read_labels, softmax
from antiphon.guard.formats import GuardFormat

LIMIT = 0.5
"""A text is flagged above this score."""

Candidates = Sequence[tuple[str, float]]
"""Texts of tokens that may be next, with their log probabilities."""


class NoVerdictError(EngineError):
    """The guard model gave no verdict in its format. Check that --moderation-format fits it."""

    code = "no_verdict"


def weight_of(form: GuardFormat, text: str) -> float:
    """The weight of the verdict in what a guard has written. Raises NoVerdictError."""
    said = text.strip()
    if form.before:
        _, found, said = said.partition(form.before)
        if not found:
            raise NoVerdictError
    word = said.split(maxsplit=1)[0].strip(".,:;*\"'").lower() if said.split() else ""
    if word not in form.words:
        raise NoVerdictError
    return form.words[word]


def categories_in(form: GuardFormat, text: str) -> list[str]:
    """The categories that a verdict lists, by the names of results."""
    _, _, listed = text.strip().partition(form.listed_after)
    by_label = {category.label.lower(): category.names for category in form.categories}
    line = listed.strip().partition("\n")[0]
    labels = (part.strip().strip(".").lower() for part in line.split(","))
    return [*dict.fromkeys(name for label in labels for name in by_label.get(label, ()))]


def written(form: GuardFormat, text: str) -> GuardVerdict:
    """The verdict by what a guard has written: scores are weights. Raises NoVerdictError."""
    weight = weight_of(form, text)
    listed = categories_in(form, text) if weight else []
    scores = {name: weight if name in listed else 0.0 for name in form.names}
    flagged = weight > LIMIT
    return GuardVerdict(
        flagged, scores, {name: flagged and name in listed for name in form.names}, read=False
    )


def reading_of(labels: Sequence[str], candidates: Candidates) -> Reading | None:
    """What the next token says of labels: a token counts for the only label that begins with it."""
    forms: list[set[str]] = [set() for _ in labels]
    for text, _ in candidates:
        if (index := _label(labels, text)) is not None:
            forms[index].add(text)
    return read_labels([*candidates], [tuple(form) for form in forms], complete=True) if candidates else None


def _label(labels: Sequence[str], text: str) -> int | None:
    """The index of the label that a token is the beginning of, or all of."""
    said = text.strip().lower()
    if not said:
        return None
    lower = [label.lower() for label in labels]
    if said in lower:
        return lower.index(said)
    begun = [index for index, label in enumerate(lower) if label.startswith(said)]
    return begun[0] if len(begun) == 1 else None


def score_of(form: GuardFormat, readings: Sequence[Candidates]) -> float | None:
    """The score of a text by what may be next after each of `read_after`; None if that says nothing."""
    labels = [*form.words]
    read = [reading for candidates in readings if (reading := reading_of(labels, candidates)) is not None]
    if not read:
        return None
    best = max(read, key=lambda reading: reading.label_mass)
    shares = softmax(best.logprobs)
    return math.fsum(share * form.words[word] for word, share in zip(labels, shares, strict=True))


def shares_of(form: GuardFormat, candidates: Candidates) -> Mapping[str, float]:
    """How probable each category is in an unsafe verdict, by what may follow `category_after`."""
    labels = [category.label.removeprefix(form.category_prefix) for category in form.categories]
    reading = reading_of(labels, candidates)
    if reading is None:
        return {}
    shares: dict[str, float] = {}
    for category, share in zip(form.categories, softmax(reading.logprobs), strict=True):
        for name in category.names:
            shares[name] = min(1.0, shares.get(name, 0.0) + share)
    return shares


def likeliest(shares: Mapping[str, float]) -> list[str]:
    """The category that is most probable, with those of the same share; none without any."""
    highest = max(shares.values(), default=0.0)
    return [name for name, share in shares.items() if share == highest > 0]


def read_verdict(
    form: GuardFormat, score: float, shares: Mapping[str, float], listed: Sequence[str] = ()
) -> GuardVerdict:
    """The verdict by a score that was read, and the categories that an unsafe verdict lists.

    That of a format without categories has one without a name.
    """
    flagged = score > LIMIT
    if not form.categories:
        return GuardVerdict(flagged, {"": score})
    scores = {name: score if name in listed else score * shares.get(name, 0.0) for name in form.names}
    return GuardVerdict(flagged, scores, {name: flagged and name in listed for name in form.names})
