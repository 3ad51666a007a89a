"""Chat Completions without HTTP: answers, batches, prompts, and completions that are stored."""

from collections.abc import Awaitable, Callable, Sequence
from time import time

import structlog
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.apis.chat.accept import AcceptedChat, ServerDefaults, accept, accept_batch
from antiphon.apis.chat.answer import ChatCompletionBuilder
from antiphon.apis.chat.schema import BatchChatRequest, ChatOptions, ChatRequest
from antiphon.apis.chat.stored import stored_messages
from antiphon.apis.chat.stream import ChatCompletionStream
from antiphon.apis.chat.tools import requested_tools
from antiphon.apis.envelope import Envelope
from antiphon.app.app import App
from antiphon.app.ids import answer_id, created_now, fingerprint, random_id
from antiphon.app.journal import CallJournal, CompletionJournal, StreamedCompletionJournal, as_records
from antiphon.app.moderation import checked, moderated
from antiphon.core.hosts import Note
from antiphon.core.limits import DAY
from antiphon.core.moderation import ModerationResult
from antiphon.core.observation import observed
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver, Journal
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext
from antiphon.store.records import CompletionRecord, ItemRecord
from antiphon.tools.discovery import ToolRequester, client_names

log = structlog.get_logger(__name__)

PREFIX = "chatcmpl-"
NOT_STORED = Note("store", "This server stores nothing: it was started with --store none.")


async def create(
    app: App,
    request: ChatRequest,
    owner: str,
    header_id: str | None = None,
    calls: CallJournal | None = None,
) -> Driver:
    """Answer a conversation; `calls` stores the calls of its server tools. Raises RequestError."""
    model = await app.models.model(request.model)
    policy = await moderated(app, request.moderation)
    accepted = accept(request, owner, await defaults(app, model, request, owner))
    app.check_template(accepted.turn.template)
    if forced := app.notes_on_forced(model, accepted.turn):
        noted = replace(accepted.presentation, notes=(*accepted.presentation.notes, *forced))
        accepted = replace(accepted, presentation=noted)
    if accepted.store and not app.settings.stores:
        noted = replace(accepted.presentation, notes=(*accepted.presentation.notes, NOT_STORED))
        accepted = replace(accepted, store=False, presentation=noted)
    contents = app.contents(owner) if accepted.store else None
    turn, presentation = await app.attached(model, accepted.turn, contents), accepted.presentation
    if accepted.repairs or presentation.notes:
        _log_repairs(accepted.repairs)
        app.log_notes(presentation.notes)
    client_id = answer_id(PREFIX, accepted.request_id, header_id)
    # Stored completions are found by their ids, so no client may choose them.
    observed().answer = answer = random_id(PREFIX, 24) if accepted.store else client_id
    envelope = Envelope(answer, turn.model, int(created_now()), system_fingerprint=fingerprint(turn.model))
    kind = ChatCompletionStream if request.stream else ChatCompletionBuilder
    projection = kind(envelope, turn.choices, presentation)
    built = projection if isinstance(projection, ChatCompletionBuilder) else None
    journal: Journal | None = calls
    if contents is not None:
        input_items = stored_messages(answer, request.messages)
        await app.storage.store.usage.check(owner, sum(len(item.payload) for item in input_items), "store")
        messages = await contents.keep(input_items, answer, "messages")
        built = built or ChatCompletionBuilder(envelope, turn.choices, presentation)
        kind_of_journal = CompletionJournal if built is projection else StreamedCompletionJournal
        storing = kind_of_journal(built, _saving(app, accepted, envelope, as_records(messages)))
        storing.calls, journal = calls, storing

    def report(result: ModerationResult) -> None:
        for shown in (projection, built):
            if shown is not None:
                shown.moderated(result)

    context = ReplayContext(calls_begun=calls.calls_begun if calls else 0)
    source = checked(app, AnswerSource([turn], model, context), policy, turn, report)
    return app.driver(source, projection, journal, request.deadline_seconds)


async def create_batch(app: App, request: BatchChatRequest, owner: str, header_id: str | None) -> Driver:
    """The answers to several conversations, each with one choice. Raises RequestError."""
    model = await app.models.model(request.model)
    accepted = accept_batch(request, owner, await defaults(app, model, request, owner))
    app.check_template(request.chat_template)
    _log_repairs(accepted.repairs)
    app.log_notes(accepted.presentation.notes)
    observed().answer = answer = answer_id(PREFIX, accepted.request_id, header_id)
    envelope = Envelope(
        answer, request.model, int(created_now()), system_fingerprint=fingerprint(request.model)
    )
    projection = ChatCompletionBuilder(envelope, len(accepted.turns), accepted.presentation)
    turns = [await app.attached(model, turn) for turn in accepted.turns]
    return app.driver(AnswerSource(turns, model), projection, seconds=request.deadline_seconds)


async def defaults(app: App, model: Model, request: ChatOptions, owner: str) -> ServerDefaults:
    """The server's part of a request: presentation and tools. Raises RequestError, ToolError."""
    requested = requested_tools(request)
    if not requested and not app.default_tools:
        return ServerDefaults(app.presentation(model))
    asking = ToolRequester(owner, names=client_names(request.tools))
    return ServerDefaults(app.presentation(model), await app.hosts(model, requested, asking))


def _log_repairs(repairs: tuple[str, ...]) -> None:
    if repairs:
        log.info("request repaired", what=repairs)


def _saving(
    app: App, accepted: AcceptedChat, envelope: Envelope, messages: Sequence[ItemRecord]
) -> Callable[[bytes], Awaitable[None]]:
    """The function that stores a complete answer."""

    async def save(body: bytes) -> None:
        now, metadata = time(), accepted.presentation.metadata
        record = CompletionRecord(
            id=envelope.id,
            owner=accepted.turn.owner,
            created_at=now,
            model=envelope.model,
            body=body,
            metadata={} if metadata is UNSET else metadata,
            expires_at=now + app.settings.keep_days * DAY,
        )
        completions = app.storage.store.completions

        async def store() -> bool:
            await completions.save(record, messages)
            return True

        async def stored() -> bool | None:
            return await completions.get(record.owner, record.id) is not None or None

        await app.storage.writer.retried(store, stored)

    return save
