"""POST /v1/responses, and what can be done with one that is stored."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.responses.resource import DeletedResponse, item_list
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.wire import decode
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.decode.ids import random_id
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.context import Context, context_of
from antiphon.http.query import Query
from antiphon.http.responses.answering import Answering
from antiphon.http.responses.asking import ask
from antiphon.http.responses.running import as_it_is
from antiphon.http.responses.running import cancel as have_cancelled
from antiphon.http.responses.streaming import stream_of
from antiphon.http.sse import AnswerResponse, StreamResponse
from antiphon.run.follow import follow
from antiphon.store.records import ItemRecord, Page, ResponseRecord

Answer = AnswerResponse | StreamResponse | Response


async def create(request: Request) -> Answer:
    """Answer, or promise to."""
    context, owner = context_of(request), owner_of(request)
    wire = decode(await read_json(request), CreateResponse)
    asked = await ask(context, wire, owner, random_id("resp_", 48))
    answering = Answering(context, wire, asked)
    obfuscated = bool(wire.stream_options and wire.stream_options.include_obfuscation)
    if wire.background:
        await answering.queued()
        if not wire.stream:
            return json(answering.projection.body())
        return stream_of(context, follow(context.worker.desk, owner, answering.id, -1), obfuscated)
    if not wire.stream:
        return AnswerResponse(answering.whole())
    payloads = answering.recorded() if asked.accepted.settings.store else answering.forgotten()
    return stream_of(context, payloads, obfuscated, answering.projection.fail)


async def retrieve(request: Request) -> Answer:
    """The response as it is now, or its events from `starting_after` on."""
    context, query = context_of(request), Query(request.query_params)
    record = await _stored(context, request)
    after = query.number("starting_after", -1, least=0)
    if not query.flag("stream"):
        if after >= 0:
            raise RequestError("It goes with stream=true. Leave it out.", param="starting_after")
        return json(as_it_is(record))
    if record.last_seq < 0 and record.status.terminal:
        message = "This response was not streamed, so it has no events. Leave out 'stream'."
        raise RequestError(message, param="stream")
    events = follow(context.worker.desk, record.owner, record.id, after)
    return stream_of(context, events, query.flag("include_obfuscation"))


async def delete(request: Request) -> Response:
    """Forget a response, with its items and events. One that is being answered stops."""
    context, response_id = context_of(request), request.path_params["response_id"]
    if not await context.worker.store.responses.delete(owner_of(request), response_id):
        raise _not_found(response_id)
    return json(msgspec.json.encode(DeletedResponse(response_id)))


async def cancel(request: Request) -> Response:
    """Stop a background response. One that has ended stays as it is."""
    context = context_of(request)
    record = await _stored(context, request)
    if not record.background:
        message = "Only background responses can be cancelled. Close the connection of others."
        raise RequestError(message, param="response_id")
    return json(await have_cancelled(context.worker.store, record))


async def list_input_items(request: Request) -> Response:
    """What went into a response."""
    context, query = context_of(request), Query(request.query_params)
    record = await _stored(context, request)
    page = await context.worker.store.responses.input_items(record.owner, record.id, query.paging())
    return json(items_of(page))


def items_of(page: Page[ItemRecord]) -> bytes:
    """The body of a list of items."""
    items = [StoredItem(item.id, item.type, item.payload) for item in page.data]
    return msgspec.json.encode(item_list(items, has_more=page.has_more))


def json(body: bytes) -> Response:
    """A JSON body."""
    return Response(body, media_type="application/json")


async def _stored(context: Context, request: Request) -> ResponseRecord:
    response_id = request.path_params["response_id"]
    record = await context.worker.store.responses.get(owner_of(request), response_id)
    if record is None:
        raise _not_found(response_id)
    return record


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id '{response_id}' not found.", param="response_id")
