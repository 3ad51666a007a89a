"""The orders in which the options of a question are shown to a model.

Models prefer some positions. The more orders are asked, the less of that is left in the mean: two halve it,
all rotations, in which each option stands once in each position, remove nearly all of it.
"""

from antiphon.core.decision import QuestionKind

FEW = 4
"""A choice of at most this number of options is asked in all rotations by default."""

Order = tuple[int, ...]
"""The indexes of options, in the order in which they are shown."""


def orders_of(kind: QuestionKind, options: int, count: int | None = None) -> tuple[Order, ...]:
    """The orders of this number of options, all different, the first of them the question's own.

    `count` is the number that is asked for; None for the default of the kind. Levels and predicates have
    labels of their own, and only two orders.
    """
    forward = tuple(range(options))
    backward = forward[::-1]
    if kind is not QuestionKind.CHOICE:
        count, most = count or 1, 2
    else:
        count, most = count or (options if options <= FEW else 2), options
    count = min(count, most, options)
    if count <= 1:
        return (forward,)
    if count == 2:
        return forward, backward
    return tuple(_rotated(forward, number * options // count) for number in range(count))


def _rotated(order: Order, by: int) -> Order:
    return order[by:] + order[:by]
