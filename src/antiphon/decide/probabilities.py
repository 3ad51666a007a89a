"""The arithmetic of decisions: log probabilities of tokens → probabilities of options, and their figures.

The formulas of confidence are those of Jev, with which thresholds of its users keep their meaning.
"""

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar

from msgspec import Struct

Form = TypeVar("Form", bound=Hashable)


class Reading(Struct, frozen=True):
    """What a next token says of labels: the log probability of each, -inf for one that is impossible.

    `label_mass` is the probability that was told for all labels together. `label_is_likeliest`: the
    likeliest token is a form of a label. `truncated`: a label was not told, and has its bound.
    """

    logprobs: tuple[float, ...]
    label_mass: float
    label_is_likeliest: bool
    truncated: bool = False


def read_labels(
    candidates: Sequence[tuple[Form, float]], forms: Sequence[Sequence[Form]], *, complete: bool
) -> Reading | None:
    """The reading of labels with these forms among candidates, the likeliest first; None if none is there.

    The forms of a label are summed. Unless the candidates are `complete`, a label without any has the
    highest probability that it can have: `bound`.
    """
    told: dict[Form, float] = {}
    for form, logprob in candidates:
        told[form] = log_sum((told[form], logprob)) if form in told else logprob
    sums = [log_sum([told[form] for form in label if form in told]) for label in forms]
    if all(value == -math.inf for value in sums):
        return None
    mass = math.fsum(math.exp(value) for value in sums)
    unknown = [not any(form in told for form in label) for label in forms]
    truncated = not complete and any(unknown)
    if truncated:
        highest = bound([logprob for _, logprob in candidates])
        sums = [highest if missing else value for value, missing in zip(sums, unknown, strict=True)]
    owned = {form for label in forms for form in label}
    return Reading((*sums,), min(1.0, mass), candidates[0][0] in owned, truncated)


def bound(logprobs: Sequence[float]) -> float:
    """The highest log probability of a token that is not among the likeliest, which have these.

    It is at most that of the last one, and at most what all of them leave.
    """
    left = 1 - math.fsum(map(math.exp, logprobs))
    return min(logprobs[-1], math.log(left)) if left > 0 else -math.inf


def log_sum(logprobs: Sequence[float]) -> float:
    """The log of the sum of probabilities; -inf for none."""
    highest = max(logprobs, default=-math.inf)
    if highest == -math.inf:
        return highest
    return highest + math.log(math.fsum(math.exp(value - highest) for value in logprobs))


def softmax(logprobs: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Probabilities, whose sum is 1. At least one of the logs must be finite."""
    highest = max(logprobs)
    return normalised([math.exp((value - highest) / temperature) for value in logprobs])


def normalised(weights: Sequence[float]) -> tuple[float, ...]:
    """The weights divided by their sum."""
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def mean(distributions: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean of distributions over the same options."""
    return normalised([math.fsum(column) for column in zip(*distributions, strict=True)])


def likeliest(probabilities: Sequence[float]) -> int:
    """The index of the likeliest option, the first of several."""
    return max(range(len(probabilities)), key=lambda index: (probabilities[index], -index))


def expectation(probabilities: Sequence[float]) -> float:
    """The expected index."""
    return math.fsum(index * probability for index, probability in enumerate(probabilities))


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How much likelier the likeliest option is than chance: 0 to 1, and 1 for a single option."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    return min(1.0, max(0.0, (count * max(probabilities) - 1) / (count - 1)))


def score_confidence(probabilities: Sequence[float]) -> float:
    """How close the levels stay to the likeliest, compared with chance: 0 to 1, and 1 for a single one."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    mode = likeliest(probabilities)
    spread = math.fsum(probability * abs(index - mode) for index, probability in enumerate(probabilities))
    of_chance = sum(abs(index - (count - 1) / 2) for index in range(count)) / count
    return min(1.0, max(0.0, 1 - spread / of_chance))
