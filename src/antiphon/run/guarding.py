"""A guard model at work: texts → verdicts.

A text is judged as the last message of a conversation, in windows that overlap, so that none is too long for
the guard. Scores are read from the tokens that may come next, where the engine tells them; only a text that
is flagged costs an answer, which lists the categories. Of an engine that tells none, each verdict is an
answer, and scores are 0, 0.5 or 1.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import structlog

from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import AntiphonError
from antiphon.core.items import Item, Message, Role, TextPart
from antiphon.core.moderation import GuardFailure, GuardOutcome, GuardVerdict, ModerationFailedError, merged
from antiphon.core.permits import Permits
from antiphon.core.turn import Turn
from antiphon.engines.engine import NextToken
from antiphon.guard.formats import DECISIONS, DEFINITIONS, FORMATS, GuardFormat, format_of
from antiphon.guard.verdicts import (
    LIMIT,
    categories_in,
    likeliest,
    read_verdict,
    score_of,
    shares_of,
    weight_of,
    written,
)
from antiphon.run.model import Model

log = structlog.get_logger()

WINDOW = 4_000
"""The most characters of a text that are judged at once: all guards have room for them in any language."""
OVERLAP = 400
"""The characters that a window shares with the one before."""
BEFORE = 1_000
"""The most characters of the message before, which the guard sees with an answer: its end."""
AT_ONCE = 8
"""The checks of one server that are under way at the same time, one fewer of one client; others wait."""
REMEMBERED = 4_096
"""The verdicts that are kept: conversations are sent again with each message."""
VERDICT_TOKENS = 64
"""The most tokens of a written verdict."""

SAFE = GuardVerdict()
"""The verdict on no text."""


class GuardModel:
    """Judges texts with the model that `model` returns, in its format, None to find that by its names.

    A check takes at most so many `seconds`.
    """

    def __init__(
        self, name: str, model: Callable[[], Awaitable[Model]], form: str | None, seconds: float
    ) -> None:
        self.name = name
        self._model = model
        self._form = form
        self._seconds = seconds
        self.permits = Permits(AT_ONCE, owner_capacity=AT_ONCE - 1)
        self._known: OrderedDict[bytes, GuardVerdict] = OrderedDict()

    async def names(self) -> Sequence[str]:
        """All categories that verdicts tell of. Raises RequestError, EngineError."""
        form = await self._format(await self._model())
        return [*DEFINITIONS] if form is None else form.names

    async def judge(
        self, texts: Sequence[str], role: Role, owner: str, before: str = ""
    ) -> tuple[GuardVerdict, int]:
        """The verdict on texts of a role, which follow a message `before`; and the tokens that were read.

        Raises ModerationFailedError if there is none.
        """
        windows = [window for text in texts for window in windows_of(text)]
        if not windows:
            return SAFE, 0
        try:
            async with asyncio.TaskGroup() as group:
                checks = [group.create_task(self._window(window, role, owner, before)) for window in windows]
        except ExceptionGroup as failures:
            raise _failed(failures.exceptions[0]) from failures.exceptions[0]
        results = [check.result() for check in checks]
        return merged([verdict for verdict, _ in results]), sum(tokens for _, tokens in results)

    async def outcome(
        self, texts: Sequence[str], role: Role, owner: str, before: str = ""
    ) -> tuple[GuardOutcome, int]:
        """The same, with a failure in the place of a verdict."""
        try:
            return await self.judge(texts, role, owner, before)
        except ModerationFailedError as error:
            log.warning("a text was not moderated", model=self.name, why=error.message)
            return failure_of(error), 0

    async def _window(self, text: str, role: Role, owner: str, before: str) -> tuple[GuardVerdict, int]:
        """The verdict on one window; one that is known costs nothing. Clients share no verdicts."""
        before = before[-BEFORE:] if role is Role.ASSISTANT else ""
        key = sha256(repr((owner, role.value, before, text)).encode()).digest()  # of texts with any character
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known, 0
        async with self.permits.hold(), asyncio.timeout(self._seconds):
            verdict, tokens = await self._judged(text, role, before)
        self._known[key] = verdict
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verdict, tokens

    async def _judged(self, text: str, role: Role, before: str) -> tuple[GuardVerdict, int]:
        model = await self._model()
        form = await self._format(model)
        if form is None:
            return await _decided(model, text)
        said = (*([_message(Role.USER, before)] if before else []), _message(role, text))
        if not form.policies:
            return await _verdict(model, form, self._turn(said))
        verdicts, total = [], 0
        for policy in form.policies:
            verdict, tokens = await _verdict(model, form, self._turn(said, policy.variables))
            verdicts.append(_of_policy(verdict, policy.names))
            total += tokens
        return merged(verdicts), total

    def _turn(self, items: Sequence[Item], variables: Mapping[str, Any] | None = None) -> Turn:
        return Turn(self.name, (*items,), variables=variables or {})

    async def _format(self, model: Model) -> GuardFormat | None:
        """The format of the model; None if it decides."""
        name = self._form or format_of((self.name, model.card.name, *model.card.known_as))
        return None if name == DECISIONS else FORMATS[name]


def windows_of(text: str) -> Iterator[str]:
    """A text in pieces that overlap; none if there is nothing but space."""
    if not text.strip():
        return
    start = 0
    while True:
        yield text[start : start + WINDOW]
        if start + WINDOW >= len(text):
            return
        start += WINDOW - OVERLAP


def failure_of(error: AntiphonError) -> GuardFailure:
    """A failure as results tell it."""
    return GuardFailure(error.code or "moderation_failed", error.message)


def _failed(error: Exception) -> ModerationFailedError:
    if isinstance(error, TimeoutError):
        return ModerationFailedError("The guard model took too long to check the text. Try again.")
    if isinstance(error, AntiphonError):
        return ModerationFailedError(f"The guard model could not check the text: {error.message}")
    raise error


def _message(role: Role, text: str) -> Message:
    return Message(role, (TextPart(text),))


async def _verdict(model: Model, form: GuardFormat, turn: Turn) -> tuple[GuardVerdict, int]:
    """One verdict of the guard, and its tokens."""
    lists = bool(form.categories)
    after = (*form.read_after, *([form.category_after] if lists else []))
    read = await model.next_tokens(turn, after)
    readings = [_texts(reading) for reading in read.readings]
    score = score_of(form, readings[: len(form.read_after)]) if readings else None
    if score is None:
        answer = await model.plain_answer(turn, VERDICT_TOKENS)
        return _by_writing(form, answer.text), read.tokens + answer.tokens
    shares = shares_of(form, readings[-1]) if lists else {}
    if score <= LIMIT or not lists:
        return read_verdict(form, score, shares), read.tokens
    answer = await model.plain_answer(turn, VERDICT_TOKENS)
    listed = categories_in(form, answer.text) or likeliest(shares)
    return read_verdict(form, score, shares, listed), read.tokens + answer.tokens


def _by_writing(form: GuardFormat, text: str) -> GuardVerdict:
    if form.categories:
        return written(form, text)
    weight = weight_of(form, text)
    return GuardVerdict(weight > LIMIT, {"": weight}, read=False)


def _of_policy(verdict: GuardVerdict, names: Sequence[str]) -> GuardVerdict:
    """A verdict on one policy, as one on the categories that it is about."""
    score = verdict.scores[""]
    scores, categories = dict.fromkeys(names, score), dict.fromkeys(names, verdict.flagged)
    return GuardVerdict(verdict.flagged, scores, categories, verdict.read)


def _texts(reading: NextToken) -> list[tuple[str, float]]:
    return [(candidate.text, candidate.logprob) for candidate in reading.candidates]


async def _decided(model: Model, text: str) -> tuple[GuardVerdict, int]:
    """The verdict of a model without a format: the probability that each category applies."""
    verdicts = await model.decide(
        Decision(
            model="",
            items=(_message(Role.USER, f"A text:\n\n{text}\n\n(The text ends here.)"),),
            questions=tuple(
                Question(
                    QuestionKind.PREDICATE,
                    (TextPart(f"Of the text above: {question}"),),
                    (Option(""), Option("")),
                    source="input",
                )
                for question in DEFINITIONS.values()
            ),
            parameters={"conversation": "input"},
        )
    )
    scores = {
        name: verdict.probabilities[0] for name, verdict in zip(DEFINITIONS, verdicts.verdicts, strict=True)
    }
    categories = {name: score > LIMIT for name, score in scores.items()}
    return GuardVerdict(any(categories.values()), scores, categories), verdicts.prompt_tokens
