"""Moderation by a guard model of this server, without HTTP: of texts, and of requests with their answers."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from antiphon.apis.moderation import (
    ALIASES,
    CreateModeration,
    ModerationParam,
    Moderations,
    check_size,
    judged,
    policy_of,
    texts_of,
)
from antiphon.app.ids import random_id
from antiphon.core.errors import NotFoundError, RequestError, naming
from antiphon.core.items import WITH_PARTS, Item, MediaPart, Role
from antiphon.core.limits import Limits
from antiphon.core.moderation import (
    GuardFailure,
    GuardOutcome,
    GuardVerdict,
    ModerationPolicy,
    ModerationResult,
)
from antiphon.core.observation import Observation, ObservedModeration, observed
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.core.turn import Turn
from antiphon.decode.chat_decoder import BYTES_PER_TOKEN
from antiphon.run.drive import Source
from antiphon.run.guarding import GuardModel, failure_of
from antiphon.run.models import Models
from antiphon.run.moderated import ModeratedInput, ModeratedSource, Outcomes, texts_beside, texts_in

if TYPE_CHECKING:
    from antiphon.app.app import App

Report = Callable[[ModerationResult], None]

NO_GUARD = (
    "This server has no guard model: it was started without --moderation. Do that in the client, "
    "or ask the operator of the server."
)


class Moderator:
    """Checks texts with the guard of this name.

    `models` is used when the first text is checked. In answers that block, windows have so many characters.
    """

    def __init__(
        self, name: str, form: str | None, window: int, models: Callable[[], Models], limits: Limits
    ) -> None:
        self.name = name
        self.window = window
        self.limits = limits
        self._models = models
        self.guard = GuardModel(name, lambda: models().model(name), form, limits.moderation_seconds)

    @property
    def canonical(self) -> str:
        """Its first name, for metrics."""
        return self._models().canonical(self.name)

    async def check_name(self, requested: str | None, param: str) -> None:
        """Raise NotFoundError unless a request means this guard, and its key may use it."""
        if requested is not None and requested not in ALIASES | {self.name}:
            message = f"There is no guard model {requested[:64]!r}. This server has '{self.name}'."
            raise NotFoundError(message, param=param, code="model_not_found")
        with naming({"model": param}):
            await self._models().model(self.name)


class _Checking:
    """Checks the texts of one request. See `Checking`."""

    def __init__(self, moderator: Moderator, owner: str, texts: Sequence[str], report: Report) -> None:
        self._moderator = moderator
        self._owner = owner
        self._before = texts[-1] if texts else ""
        self._report = report
        self._observation = observed()

    async def input(self, texts: Sequence[str]) -> GuardOutcome:
        try:
            check_size(texts, "input", self._moderator.limits)
        except RequestError as error:
            return self._seen("input", failure_of(error), 0)
        outcome, tokens = await self._moderator.guard.outcome(texts, Role.USER, self._owner)
        return self._seen("input", outcome, tokens)

    async def output(self, text: str) -> GuardOutcome:
        guard = self._moderator.guard
        outcome, tokens = await guard.outcome([text], Role.ASSISTANT, self._owner, self._before)
        return self._seen("output", outcome, tokens)

    def report(self, input_: GuardOutcome, outputs: Outcomes) -> None:
        self._report(ModerationResult(self._moderator.name, input_, (*outputs,)))

    def _seen(self, subject: str, outcome: GuardOutcome, tokens: int) -> GuardOutcome:
        """The outcome; its tokens are counted for the key of the request."""
        self._observation.account.settle(0, tokens)
        see(self._observation, self._moderator.canonical, subject, outcome, tokens)
        return outcome


def see(observation: Observation, model: str, subject: str, outcome: GuardOutcome, tokens: int) -> None:
    """Note an outcome, for the log and metrics."""
    said = "failed" if isinstance(outcome, GuardFailure) else "flagged" if outcome.flagged else "passed"
    observation.moderations.append(ObservedModeration(model, subject, said, tokens))


async def moderated(app: "App", param: ModerationParam | None) -> ModerationPolicy | None:
    """The policy of a request, None for one that is not moderated.

    Raises RequestError without a guard, NotFoundError for one that is not there.
    """
    if param is None:
        return None
    if app.moderator is None:
        raise RequestError(f"'moderation' is not supported. {NO_GUARD}", param="moderation")
    await app.moderator.check_name(param.model, "moderation.model")
    return policy_of(param)


def checked(
    app: "App", source: Source, policy: ModerationPolicy | None, turn: Turn, report: Report
) -> Source:
    """The source of the answer to a turn, checked as its request wants; `report` gets the result."""
    if policy is None:
        return source
    if (record := STREAM_RECORD.get()) is not None:
        record.give_up()  # what is checked comes later than its chunks
    moderator = app.moderator
    assert moderator is not None
    texts = texts_in(turn.items)
    given = ModeratedInput(
        (*texts, *texts_beside(turn)), turn.parameter("conversation"), unread=_has_media(turn.items)
    )
    checking = _Checking(moderator, turn.owner, texts, report)
    return ModeratedSource(source, checking, policy, given, choices=turn.choices, window=moderator.window)


def _has_media(items: Sequence[Item]) -> bool:
    return any(
        isinstance(part, MediaPart) for item in items if isinstance(item, WITH_PARTS) for part in item.parts
    )


async def moderations(app: "App", request: CreateModeration, owner: str) -> Moderations:
    """What the guard says of texts. Raises RequestError, NotFoundError, EngineError."""
    moderator = app.moderator
    if moderator is None:
        raise NotFoundError(NO_GUARD, code="moderation_not_served")
    texts = texts_of(request, app.limits)
    await moderator.check_name(request.model, "model")
    observed().model = moderator.name
    about = sum(map(len, texts)) // BYTES_PER_TOKEN
    with naming({"max_tokens": "input"}):
        async with observed().account.charge(about) as charge:
            results = await _judged(moderator, texts, owner)
            charge.tokens = sum(tokens for _, tokens in results)
    for verdict, tokens in results:
        see(observed(), moderator.canonical, "request", verdict, tokens)
    return Moderations(random_id("modr-", 24), moderator.name, [judged(verdict) for verdict, _ in results])


async def _judged(moderator: Moderator, texts: Sequence[str], owner: str) -> list[tuple[GuardVerdict, int]]:
    """The verdicts on texts, each with its tokens. Raises ModerationFailedError."""
    try:
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(moderator.guard.judge([text], Role.USER, owner)) for text in texts]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [check.result() for check in checks]
