"""The reads of a question: the prompts whose next token is read, and how their results become one answer.

A question is asked in some orders of its options. In each it takes one read; or, of more options than there
are labels, one that asks for a group of options, and one for each group that asks for an option of it. The
probability of an option is then that of its group, times its own in the group.
"""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.core.decision import Question, QuestionKind, Verdict
from antiphon.core.items import Part
from antiphon.decide.labels import LETTERS, groups_of, labels_of
from antiphon.decide.orders import Order, orders_of
from antiphon.decide.probabilities import Reading, mean, normalised, softmax
from antiphon.decide.wording import group_lines, option_lines, question_parts


class Read(Struct, frozen=True):
    """A prompt that ends with these parts: each label stands for the options with these indexes."""

    kind: QuestionKind
    parts: tuple[Part, ...]
    labels: tuple[str, ...]
    options: tuple[tuple[int, ...], ...]


Reads = tuple[tuple[Read, ...], ...]
"""The reads of a question: for each order those that belong together."""


def reads_of(question: Question, orders: int | None = None, pairs: Sequence[str] = ()) -> Reads:
    """The reads of the question; `pairs` are the labels of two letters that it may use."""
    shown = orders_of(question.kind, len(question.options), orders)
    return tuple(_reads_in(question, order, pairs) for order in shown)


def _reads_in(question: Question, order: Order, pairs: Sequence[str]) -> tuple[Read, ...]:
    labels = labels_of(question.kind, len(order), pairs)
    if labels is None:
        groups = groups_of(order)
        letters = LETTERS[: len(groups)]
        lines = group_lines(([question.options[index] for index in group] for group in groups), letters)
        which = Read(question.kind, question_parts(question, lines, letters), letters, groups)
        inner = [_read(question, group, LETTERS[: len(group)]) for group in groups if len(group) > 1]
        return which, *inner
    if question.kind is not QuestionKind.CHOICE:  # each option has its label in any order
        labels = tuple(labels[index] for index in order)
    return (_read(question, order, labels),)


def _read(question: Question, order: Order, labels: tuple[str, ...]) -> Read:
    lines = option_lines([question.options[index] for index in order], labels)
    parts = question_parts(question, lines, labels)
    return Read(question.kind, parts, labels, tuple((index,) for index in order))


def verdict_of(
    reads: Reads, readings: Sequence[Sequence[Reading]], options: int, temperature: float = 1.0
) -> Verdict:
    """The answer to a question with this number of options from the readings of all of its reads."""
    in_orders, masses = [], []
    for order, results in zip(reads, readings, strict=True):
        in_orders.append(_combined(order, results, options, temperature))
        masses.append(_mass(order, results, temperature))
    everything = [reading for results in readings for reading in results]
    return Verdict(
        probabilities=mean(in_orders),
        label_mass=sum(masses) / len(masses),
        label_is_likeliest=all(reading.label_is_likeliest for reading in everything),
        orders=len(reads),
        truncated=any(reading.truncated for reading in everything),
        temperature=temperature,
    )


def _combined(
    reads: Sequence[Read], readings: Sequence[Reading], options: int, temperature: float
) -> tuple[float, ...]:
    """The probabilities of options by the readings of one order."""
    weights = [1.0] * options
    for read, reading in zip(reads, readings, strict=True):
        shares = softmax(reading.logprobs, temperature)
        for share, indexes in zip(shares, read.options, strict=True):
            for index in indexes:
                weights[index] *= share
    return normalised(weights)


def _mass(reads: Sequence[Read], readings: Sequence[Reading], temperature: float) -> float:
    """The mass of labels in one order: of the first read, times that of the group that it chooses."""
    first, *inner = zip(reads, readings, strict=True)
    if not inner:
        return first[1].label_mass
    shares = dict(zip(first[0].options, softmax(first[1].logprobs, temperature), strict=True))
    in_groups = {tuple(index for (index,) in read.options): reading.label_mass for read, reading in inner}
    return first[1].label_mass * sum(share * in_groups.get(group, 1.0) for group, share in shares.items())
