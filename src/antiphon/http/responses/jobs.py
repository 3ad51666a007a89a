"""A stored response, made ready to be run by a worker, for the first time or once more."""

from functools import partial

import msgspec

from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import Responder
from antiphon.http.context import Context
from antiphon.http.responses.asking import Asked, ask
from antiphon.http.responses.compacting import Short, shorten, shortened, told
from antiphon.http.responses.projection import ResponseProjection, as_records
from antiphon.run.worker import Job
from antiphon.store.records import ResponseRecord


async def prepare(context: Context, record: ResponseRecord) -> Job:
    """What its request asks for. Raises AntiphonError if it cannot be answered any more."""
    request = msgspec.json.decode(record.request, type=CreateResponse)
    asked = await ask(context, request, record.owner, record.id)
    accepted, seal = asked.accepted, partial(context.sealer.seal, record.owner)
    projection = ResponseProjection(Responder(accepted, int(record.created_at), seal), queued=True)
    short = await _shortened(context, record, asked)
    if short is not None:
        projection.compacted(short)
    conversation = as_records(accepted.items) if accepted.settings.conversation else None
    return Job(short.turn if short else accepted.turn, asked.model, projection, conversation)


async def _shortened(context: Context, record: ResponseRecord, asked: Asked) -> Short | None:
    """The turn on a conversation that was summed up: as it was the first time, if this is not that."""
    if asked.accepted.compact_from is None:
        return None
    seal = partial(context.sealer.seal, record.owner)
    entries = await context.worker.store.log.read(record.id) if record.last_seq >= 0 else []
    summary = told(entries, partial(context.sealer.unseal, record.owner))
    if summary is not None:
        return shortened(asked.accepted.turn, summary, seal)
    return await shorten(asked.accepted, asked.model, seal)
