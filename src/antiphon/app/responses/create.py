"""Creates responses: answered while the client waits, or queued for a worker, which prepares them here."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.media import with_sources
from antiphon.apis.request import ScaledAdapter
from antiphon.apis.responses.schema import BackgroundOptions, CreateResponse
from antiphon.apis.responses.steering import required_by, required_of
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.apis.responses.tool_secrets import sealed_tools, unsealed_tools
from antiphon.app.app import App
from antiphon.app.ids import answer_id, created_now, random_id
from antiphon.app.journal import (
    BackgroundJournal,
    CallJournal,
    DurableJournal,
    FullAnswerJournal,
    StoredInput,
    StreamJournal,
    as_records,
    unpacked,
)
from antiphon.app.moderation import checked, moderated
from antiphon.app.readers import read_until
from antiphon.app.responses.compaction import CompactedSource, recorded_summary
from antiphon.app.responses.durable import DurableDriver, DurableSource
from antiphon.app.responses.history import NO_EARLIER, Earlier, ResponseRequest, read_request
from antiphon.app.responses.record import log_of, recorded_listings
from antiphon.app.responses.successors import check_predecessor
from antiphon.core.errors import NotFoundError, RequestError, StoreError
from antiphon.core.limits import DAY
from antiphon.core.moderation import ModerationPolicy
from antiphon.core.observation import observed
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.run.adapters import name_of
from antiphon.run.drive import Driver, Source
from antiphon.run.replay import ReplayContext, ReplayLog, read_entries
from antiphon.store.records import Append, ItemRecord, LogEntry, ResponseRecord, ResponseStatus

PREFIX = "resp_"
ANNOUNCING_SECONDS = 1.0
"""How long the next message of a client waits for the store."""
Request = TypeVar("Request", bound=CreateResponse)


def as_kept(app: App, wire: Request, earlier: Earlier = NO_EARLIER) -> Request:
    """The request as this server answers it: one that stores nothing keeps no response.

    Raises RequestError for what needs stored ones. Those in `earlier` are there in any case.
    """
    if app.settings.stores:
        return wire
    previous = wire.previous_response_id
    if previous and previous not in earlier:
        message = f"There is no response '{previous[:64]}': this server was started with --store none."
        raise NotFoundError(message, param="previous_response_id", code="previous_response_not_found")
    for name in ("background", "conversation"):
        if getattr(wire, name):
            message = f"'{name}' needs a store, and this server was started with --store none. Leave it out."
            raise RequestError(message, param=name)
    return replace(wire, store=False)


def response_id(wire: CreateResponse, header_id: str | None = None) -> str:
    """The id of a new response: derived from the request's own, unless it is stored. Raises RequestError."""
    own = answer_id(PREFIX, wire.request_id, header_id)
    # Stored responses are found by their ids, so no client may choose them.
    return own if wire.store is False and (wire.request_id or header_id) else new_id()


def new_id() -> str:
    """The id of a response."""
    return random_id(PREFIX, 48)


async def begin(
    app: App, wire: CreateResponse, owner: str, response_id: str, earlier: Earlier = NO_EARLIER
) -> "Creation":
    """Read a request, and store its media, if there is room. Raises RequestError."""
    contents, policy = app.contents(owner), await moderated(app, wire.moderation)
    request = await read_request(app, wire, owner, response_id, earlier, contents=contents)
    accepted = request.accepted
    if wire.lora:  # a worker may answer it when other adapters are loaded, with other numbers
        wire = replace(wire, lora=_named(wire.lora, app.models.adapter_names(wire.model)))
    if accepted.settings.store:
        conversation, size = accepted.settings.conversation, sum(len(item.payload) for item in accepted.items)
        into = None if conversation is None else conversation.id
        await app.storage.store.usage.check(owner, size, "store", into)
        items = await contents.keep(accepted.items, response_id, "input")
        request = replace(request, accepted=replace(accepted, items=items))
        if isinstance(wire.input, list):
            wire = replace(wire, input=[with_sources(item, contents.reference_of) for item in wire.input])
    # Another server would not have what only this connection keeps.
    durable = app.settings.durable_streams and wire.previous_response_id not in earlier
    return Creation(app, wire, request, policy, durable=durable)


def _named(lora: Sequence[ScaledAdapter], names: Sequence[str]) -> list[ScaledAdapter]:
    """The adapters by their names, those that exist."""
    return [
        adapter
        if adapter.id is None or (name := name_of(adapter.id, names)) is None
        else ScaledAdapter(name=name, scale=adapter.scale)
        for adapter in lora
    ]


def created_at(request: ResponseRequest, seconds: int) -> ResponseRequest:
    """The request with the time of its response, which programs get to know."""
    accepted = request.accepted
    return replace(request, accepted=replace(accepted, turn=replace(accepted.turn, created_at=seconds)))


class Outcome(Struct, frozen=True):
    """How a response has ended, and what has to be sent before anything else that goes on with it."""

    status: ResponseStatus
    required: list[dict[str, Any]]


class Creation:
    """A response that is being created for a valid request."""

    def __init__(
        self,
        app: App,
        wire: CreateResponse,
        request: ResponseRequest,
        policy: ModerationPolicy | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self._app = app
        self._policy = policy
        self._wire = wire
        self._request = request
        self._created_at = created_now()
        request = self._request = created_at(request, int(self._created_at))
        accepted = request.accepted
        observed().answer = self.id = accepted.id
        self.stored = accepted.settings.store
        self._may_be_durable = durable
        self._durable = False
        self._log: DurableSource | None = None
        self._seal = app.seal(accepted.turn.owner)
        self.projection = ResponseProjection(
            accepted, int(self._created_at), time.time, self._seal, queued=bool(wire.background)
        )
        self.projection.diagnose = request.diagnose

    def driver(self, *, streamed: bool, calls: CallJournal | None = None) -> Driver:
        """The driver for a client that waits, for a stream or the full answer.

        `calls` stores the calls of server tools of a full answer that is part of a batch.
        """
        # The ids of calls are derived from the id of the response, as all others are.
        begun = calls.calls_begun if calls else 0
        self._durable = self._may_be_durable and self.stored and streamed
        log = ReplayLog() if self._durable else None
        context = ReplayContext(log, Random(self.id), calls_begun=begun)  # noqa: S311 - not secret
        answering = CompactedSource(self._request, self.projection, self._seal, context)
        turn, report = self._request.accepted.turn, self.projection.moderated
        source = checked(self._app, answering, self._policy, turn, report)
        journal: StreamJournal | FullAnswerJournal | CallJournal | None = calls
        given = self._stored_input()
        record = STREAM_RECORD.get()
        if record is not None and (self._durable or (self.stored and given.in_conversation)):
            # The client continues what the store has; a conversation would get the turn twice.
            record.give_up()
        if log is not None:
            return self._durable_driver(source, log, given)
        if self.stored and streamed:
            journal = StreamJournal(self._app.storage.writer, self.projection, given)
        elif self.stored:
            journal = FullAnswerJournal(self._app.storage.writer, self.projection, given)
            journal.calls = calls
        return self._app.driver(source, self.projection, journal, self._wire.deadline_seconds)

    def _durable_driver(self, source: Source, log: ReplayLog, given: StoredInput) -> DurableDriver:
        writer = self._app.storage.writer
        journal = DurableJournal(writer, self.projection, given, log)
        answering = self._app.driver(source, self.projection, journal, self._wire.deadline_seconds)
        owner = self._request.accepted.turn.owner
        self._log = DurableSource(writer, owner, answering, journal)
        return DurableDriver(self._log, answering, self.projection)

    @property
    def last_number(self) -> int:
        """The number of the last event of a stream, for events that are not stored; 0 before the first."""
        return self.projection.last_number if self._log is None else max(0, self._log.position)

    async def announce_successor(self, successor_id: str) -> None:
        """Have the server that takes a durable response over end it early, as this one does."""
        if self._log is not None:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(ANNOUNCING_SECONDS):
                    await self._app.storage.store.jobs.announce_successor(self.id, successor_id)

    async def outcome(self) -> Outcome:
        """How the response has ended; a durable one perhaps on another server. Raises StoreError."""
        if self._log is None:
            status = ResponseStatus(self.projection.status or "failed")
            return Outcome(status, required_by(self.projection.items))
        owner, storage = self._request.accepted.turn.owner, self._app.storage
        responses = storage.store.responses
        record = await storage.writer.retried(lambda: responses.get(owner, self.id))
        if record is None:  # it was deleted
            return Outcome(ResponseStatus.FAILED, [])
        return Outcome(record.status, required_of(msgspec.json.decode(record.body)))

    async def queue(self) -> None:
        """Store the request, for some worker to answer."""
        store = self._app.storage.store
        lines = self.projection.queue()
        entry = LogEntry(0, len(lines) - 1, b"\n".join(lines))
        # At the same time: the store puts both into one transaction, so a worker sees the complete response.
        await asyncio.gather(
            store.responses.create(self._row(self.projection.body()), self.input),
            store.log.append(Append(response_id=self.id, worker=None, entries=(entry,))),
        )

    @property
    def history(self) -> Sequence[bytes]:
        """The payloads of the items before those of the request."""
        return self._request.history

    @property
    def input(self) -> tuple[ItemRecord, ...]:
        """The input items."""
        return as_records(self._request.accepted.items)

    def _stored_input(self) -> StoredInput:
        in_conversation = self._request.accepted.settings.conversation is not None
        return StoredInput(self.id, self._row, self.input, in_conversation)

    def _row(self, body: bytes) -> ResponseRecord:
        """The row of the response, with this response object."""
        settings, app = self._request.accepted.settings, self._app
        conversation = settings.conversation
        # Only a worker needs the secrets in them.
        continued = settings.background or self._durable
        tools = sealed_tools(self._wire.tools, self._seal if continued else None)
        return ResponseRecord(
            id=self.id,
            owner=self._request.accepted.turn.owner,
            created_at=self._created_at,
            status=ResponseStatus.QUEUED if settings.background else ResponseStatus.IN_PROGRESS,
            model=settings.model,
            request=msgspec.json.encode(replace(self._wire, tools=tools)),
            body=body,
            background=settings.background,
            previous_id=settings.previous_response_id,
            conversation_id=None if conversation is None else conversation.id,
            lease=None if settings.background else app.storage.writer.lease(),
            expires_at=self._created_at + app.settings.keep_days * DAY,
            read_until=read_until(time.time(), app.settings.stall_seconds) if self._durable else None,
        )


def may_wait(record: ResponseRecord) -> bool:
    """Whether the client gives a background response hours: it is answered when nobody else waits."""
    if b'"background_options"' not in record.request:
        return False
    options = msgspec.json.decode(record.request, type=_Waiting).background_options
    return options is not None and options.seconds is not None


class _Waiting(Struct):
    background_options: BackgroundOptions | None = None


async def prepare(app: App, record: ResponseRecord) -> tuple[Driver, BackgroundJournal]:
    """The driver for a stored response, which is answered for the first time or again.

    Raises AntiphonError if it cannot be answered any more.
    """
    await check_predecessor(app.storage.store, record)
    wire = msgspec.json.decode(record.request, type=CreateResponse)
    wire.tools = unsealed_tools(wire.tools, partial(app.sealer.unseal, record.owner))
    entries = await log_of(app.storage.store, record)
    listed = recorded_listings(entries)
    request = await read_request(app, wire, record.owner, record.id, listed=listed)
    request = created_at(request, int(record.created_at))
    accepted, seal = request.accepted, app.seal(record.owner)
    policy = await moderated(app, wire.moderation)
    # Call ids must be those of the first time.
    log = ReplayLog(read_entries([entry.chunks for entry in entries], app.toolkits.details))
    rng = Random(record.id)  # noqa: S311
    context = ReplayContext(log, rng, unpacked(record.prompt_ids), record.calls_begun)
    projection = ResponseProjection(
        accepted, int(record.created_at), time.time, seal, queued=record.background
    )
    projection.diagnose = request.diagnose
    summary = None
    if accepted.compact_from is not None:
        summary = recorded_summary(entries, lambda text: app.sealer.unseal(record.owner, text))
    answering = CompactedSource(request, projection, seal, context, summary)
    source = checked(app, answering, policy, accepted.turn, projection.moderated)
    in_conversation = accepted.settings.conversation is not None
    given = StoredInput(record.id, lambda _: record, as_records(accepted.items), in_conversation)
    journal = BackgroundJournal(app.storage.writer, projection, given, record, log)
    seconds = wire.deadline_seconds
    if wire.background_options is not None and (window := wire.background_options.seconds) is not None:
        seconds = min(window, seconds or window)
    return app.driver(source, projection, journal, seconds, record.created_at), journal
