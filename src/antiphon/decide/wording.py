"""The text of a question: what follows the conversation in the user's message.

    Question: Which team handles it?
    A: billing - payments
    B: shipping
    Answer with the letter only.

Every label is shown, also that of an option without a description: a model answers with words otherwise. An
option is one line, so that its text cannot pass for another option. The ids of questions are not shown.
"""

from collections.abc import Iterable, Sequence

from antiphon.core.decision import Option, Question, QuestionKind
from antiphon.core.items import Part, TextPart
from antiphon.decide.labels import YES_NO

VERSION = 1
"""The version of these texts, a part of the version of prompts. Count it up when one of them changes."""

SEPARATOR = "\n\n"
"""It is before a question."""

ASKS = {
    QuestionKind.CHOICE: "Which of these is right?",
    QuestionKind.SCORE: "Which of these levels is right?",
    QuestionKind.PREDICATE: "Which of these is right?",
}
"""The instructions of a question that has none."""


def question_parts(question: Question, lines: Sequence[str], labels: Sequence[str]) -> tuple[Part, ...]:
    """The parts of the question with these lines of options; media stay in their places."""
    first, *others = question.instructions or (TextPart(ASKS[question.kind]),)
    if isinstance(first, TextPart):
        parts: list[Part] = [TextPart(f"{SEPARATOR}Question: {first.text}"), *others]
    else:
        parts = [TextPart(f"{SEPARATOR}Question:"), first, *others]
    end = "\n".join((*lines, reply_line(labels)))
    return (*parts, TextPart(end))


def option_lines(options: Iterable[Option], labels: Sequence[str]) -> list[str]:
    """A line for each option, with its label."""
    return [_line(label, _described(option)) for label, option in zip(labels, options, strict=True)]


def group_lines(groups: Iterable[Iterable[Option]], labels: Sequence[str]) -> list[str]:
    """A line for each group of options: their names."""
    texts = ("; ".join(_one_line(option.name or option.description) for option in group) for group in groups)
    return [_line(label, text) for label, text in zip(labels, texts, strict=True)]


def reply_line(labels: Sequence[str]) -> str:
    """The line that asks for a label."""
    if tuple(labels) == YES_NO or tuple(labels) == YES_NO[::-1]:
        return "Answer with yes or no only."
    if labels[0].isdigit():
        return "Answer with the digit only."
    return f"Answer with the {'letter' if len(labels[0]) == 1 else 'two letters'} only."


def _line(label: str, text: str) -> str:
    return f"{label}: {text}" if text else f"{label}:"


def _described(option: Option) -> str:
    return " - ".join(filter(None, (_one_line(option.name), _one_line(option.description))))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text
