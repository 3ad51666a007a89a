"""The labels that a model answers questions with, and the forms in which it writes them.

A label has to be one token, as the answer is only its first one: letters for choices, digits for scores, yes
or no for predicates. A choice of more than 26 options has labels of two letters, if the model's vocabulary
has enough of them, else it is asked in two steps. Nothing here knows a tokenizer: `run/decisions.py` finds
out which forms are tokens.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import product
from string import ascii_uppercase, digits
from typing import TypeVar

from antiphon.core.decision import QuestionKind

Form = TypeVar("Form", bound=Hashable)

LETTERS = tuple(ascii_uppercase)
PAIRS = tuple(first + second for first, second in product(LETTERS, repeat=2))
"""All labels of two letters."""
DIGITS = tuple(digits)
YES_NO = ("yes", "no")

GROUP = 16
"""The number of options of a group, if a choice is asked in two steps."""

MOST_OPTIONS = {
    QuestionKind.CHOICE: len(LETTERS) * GROUP,
    QuestionKind.SCORE: len(DIGITS),
    QuestionKind.PREDICATE: len(YES_NO),
}
"""The most options of a question for which there are labels."""


def labels_of(kind: QuestionKind, count: int, pairs: Sequence[str] = ()) -> tuple[str, ...] | None:
    """The labels of this number of options; None for a choice that has to be asked in two steps.

    `pairs` are the labels of two letters that are tokens of the model.
    """
    if kind is QuestionKind.PREDICATE:
        return YES_NO
    if kind is QuestionKind.SCORE:
        return DIGITS[:count]
    if count <= len(LETTERS):
        return LETTERS[:count]
    return tuple(pairs[:count]) if count <= len(pairs) else None


def forms_of(label: str) -> tuple[str, ...]:
    """How a model may write the label: after a space, too, and words also in upper case."""
    words = (label, label.capitalize(), label.upper()) if label in YES_NO else (label,)
    return tuple(space + word for space in ("", " ") for word in words)


def distinct(forms: Sequence[Sequence[Form]]) -> tuple[tuple[Form, ...], ...]:
    """The forms of each label without those that belong to another label, too."""
    owners = Counter(form for label in forms for form in {*label})
    return tuple(tuple(form for form in dict.fromkeys(label) if owners[form] == 1) for label in forms)


def groups_of(order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The options in this order, in groups."""
    return tuple(tuple(order[at : at + GROUP]) for at in range(0, len(order), GROUP))
