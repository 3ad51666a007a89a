"""A stored response, made ready to be answered by a worker, for the first time or once more."""

import time
from random import Random

import msgspec

from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.app.app import App
from antiphon.app.journal import BackgroundJournal, StoredInput, as_records, unpacked
from antiphon.app.responses.compaction import CompactedSource, recorded_summary
from antiphon.app.responses.history import understand
from antiphon.app.responses.record import log_of
from antiphon.run.drive import Driver
from antiphon.run.replay import ReplayContext, ReplayLog, read_entries
from antiphon.store.records import ResponseRecord


async def prepare(app: App, record: ResponseRecord) -> tuple[Driver, BackgroundJournal]:
    """What answers it. Raises AntiphonError if it cannot be answered any more."""
    wire = msgspec.json.decode(record.request, type=CreateResponse)
    request = await understand(app, wire, record.owner, record.id)
    accepted, seal = request.accepted, app.seal(record.owner)
    entries = await log_of(app.storage.store, record)
    # Call ids must be those of the first time.
    log = ReplayLog(read_entries([entry.chunks for entry in entries]))
    context = ReplayContext(log, Random(record.id), unpacked(record.prompt_ids))  # noqa: S311
    projection = ResponseProjection(accepted, int(record.created_at), time.time, seal, queued=True)
    summary = None
    if accepted.compact_from is not None:
        summary = recorded_summary(entries, lambda text: app.sealer.unseal(record.owner, text))
    source = CompactedSource(request, projection, seal, context, summary)
    in_conversation = accepted.settings.conversation is not None
    given = StoredInput(record.id, lambda _: record, as_records(accepted.items), in_conversation)
    journal = BackgroundJournal(app.storage.writer, projection, given, record, log)
    return app.driver(source, projection, journal, record.created_at), journal
