"""Decisions: questions about a text, which a model answers with probabilities instead of text.

A decision is the same type for every API: a conversation, and questions that are asked about it one by one,
each after the conversation alone. A question has options; a model is asked for the label of one of them, and
the probabilities of the labels at the first token of its answer are those of the options.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from antiphon.core.items import Item, Part
from antiphon.core.turn import Sampling


class QuestionKind(StrEnum):
    """What the options of a question are."""

    CHOICE = "choice"
    """Alternatives, in an order without meaning."""
    SCORE = "score"
    """Levels, from the lowest to the highest."""
    PREDICATE = "predicate"
    """Two: that something is true, and that it is not, in this order."""


class Option(Struct, frozen=True):
    """An option: the `name` that the model is shown, and what it means. One of them may be empty."""

    name: str
    description: str = ""


class Question(Struct, frozen=True):
    """A question. `instructions` are shown to the model, and `options` after them.

    `source` names the question in the request, for errors: `questions[3]`, `questions.route`.
    """

    kind: QuestionKind
    instructions: tuple[Part, ...]
    options: tuple[Option, ...]
    source: str


class Decision(Struct, frozen=True):
    """A request for decisions.

    `items` is the conversation before the questions. Each question is asked in `orders` orders of its
    options, whose probabilities are averaged; None for the server's default. Of `sampling` only `lora`,
    `cache_salt` and `priority` may be set. `variables` are passed to the chat template.
    `parameters` maps neutral names in errors to those of the request: conversation.
    """

    model: str
    items: tuple[Item, ...]
    questions: tuple[Question, ...]
    orders: int | None = None
    sampling: Sampling = Sampling()
    variables: Mapping[str, Any] = {}
    media_fallback: str | None = None
    owner: str = ""
    parameters: Mapping[str, str] = {}


class Verdict(Struct, frozen=True):
    """The answer to a question: the probability of each option, in the question's order. Their sum is 1.

    `label_mass` is the probability that the model's next token is the label of any option, before
    calibration; `label_is_likeliest` says whether the likeliest token is one. Both are of all `orders`
    together: the mean, and whether it is so in each; None if a server answers itself, and does not tell.
    `truncated`: the server of the model did not tell the probability of a label, and the highest that it can
    have was taken. `temperature` is the calibration's.
    """

    probabilities: tuple[float, ...]
    label_mass: float | None
    label_is_likeliest: bool | None
    orders: int = 1
    truncated: bool = False
    temperature: float = 1.0


class Verdicts(Struct, frozen=True):
    """The answers to all questions of a decision, in their order, and its tokens.

    Tokens of the beginning that all questions share are counted once, and `prompt_tokens` does not depend on
    the cache; `cached_tokens` of them were in it. `reads` is the number of prompts whose next token was read.
    `prompt_version` identifies how questions are put to this model: the wording, the labels, the prefill; it
    is `server` if the model's server does that in a way of its own. `calibration` is the name of the
    calibration that was applied, empty without one.
    """

    verdicts: tuple[Verdict, ...]
    prompt_tokens: int
    cached_tokens: int = 0
    reads: int = 0
    prompt_version: str = ""
    calibration: str = ""
