"""Conversations that are summarised: because a client requests it, or because they have become too long."""

from collections.abc import Callable, Iterable
from time import time
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.apis.framing import event_type
from antiphon.apis.responses.compact import (
    accept_compact,
    compaction_body,
    compaction_fields,
)
from antiphon.apis.responses.schema import CompactRequest
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.apis.summaries import summary_turn, turn_after
from antiphon.app.app import App
from antiphon.app.attachments import with_media
from antiphon.app.event_log import logged_events
from antiphon.app.ids import random_id
from antiphon.app.responses.history import ResponseRequest, read_context
from antiphon.app.responses.record import ITEM_DONE
from antiphon.app.summaries import ConversationSummary, SummaryProjection, summarise
from antiphon.core.errors import RequestError
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver, Output
from antiphon.run.replay import ReplayContext
from antiphon.store.records import LogEntry


class CompactedSource:
    """Answers a request with its conversation; with a summary of it, if the request wants one or it is due.

    `recorded` is the summary that an earlier run of the same answer has made. See `run.drive.Source`.
    """

    def __init__(
        self,
        request: ResponseRequest,
        projection: ResponseProjection,
        seal: Callable[[str], str],
        context: ReplayContext,
        recorded: ConversationSummary | None = None,
    ) -> None:
        self._accepted = request.accepted
        self._model = request.model
        self._projection = projection
        self._seal = seal
        self._context = context
        self._recorded = recorded
        self._source: AnswerSource | None = None
        self._steered = False

    async def run(self, output: Output) -> None:
        turn, summary = self._accepted.turn, self._recorded
        if summary is None and (self._accepted.compacts or await self._is_due()):
            summary = await summarise(summary_turn(turn), self._model)
        if summary is not None:
            fields = compaction_fields(summary.text, self._seal)
            self._projection.compacted(fields, summary.prompt_tokens, summary.usage)
            turn = turn_after(turn, summary.text)
        if not self._accepted.compacts:
            self._source = AnswerSource([turn], self._model, self._context)
            if self._steered:
                self._source.steer()
            await self._source.run(output)

    async def _is_due(self) -> bool:
        limit = self._accepted.compact_from
        return limit is not None and (await self._model.count(self._accepted.turn)).tokens >= limit

    def steer(self) -> None:
        self._steered = True
        if self._source is not None:
            self._source.steer()

    def abandon(self) -> Iterable[tuple[int, Any]]:
        return () if self._source is None else self._source.abandon()


def recorded_summary(
    entries: list[LogEntry], unseal: Callable[[str], str | None]
) -> ConversationSummary | None:
    """The summary in the log of a response, if there is one: then no other one is made."""
    for entry in entries:
        for line in logged_events(entry):
            if event_type(line) == ITEM_DONE:
                item = msgspec.json.decode(line)["item"]
                if item["type"] == "compaction" and (text := unseal(item["encrypted_content"])) is not None:
                    return ConversationSummary(text)
    return None


class CompactionProjection(SummaryProjection):
    """The answer to a request for a compaction: `make` makes the body of a summary."""

    def __init__(self, make: Callable[[ConversationSummary], bytes]) -> None:
        super().__init__()
        self._make = make

    def body(self) -> bytes:
        """The compaction."""
        return self._make(self.summary)


async def compact(app: App, request: CompactRequest, owner: str) -> Driver:
    """Make a summary that replaces a conversation. Raises RequestError."""
    if request.moderation is not None:
        message = "A compaction is not moderated. Leave it out."
        raise RequestError(message, param="moderation")
    model = await app.models.model(request.model)
    context = await read_context(app, model, request, owner, random_id("cmp_", 48))
    accepted = await app.large.run_on_items(
        request.input, lambda: accept_compact(request, context), context.history
    )

    def make(summary: ConversationSummary) -> bytes:
        fields = compaction_fields(summary.text, app.seal(owner))
        return compaction_body(accepted, fields, int(time()), summary.prompt_tokens, summary.usage)

    turn = await app.attached(model, accepted.turn)
    kept = [await with_media(app.storage.store, owner, payload) for payload in accepted.kept]
    accepted = replace(accepted, kept=tuple(kept))
    source = AnswerSource([turn], model)
    return app.driver(source, CompactionProjection(make), seconds=request.deadline_seconds)
