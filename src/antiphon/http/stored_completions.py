"""GET, POST and DELETE of /v1/chat/completions/{id}: chat completions that were stored, and lists of them."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.chat.stored import Deleted, UpdateRequest, page, with_metadata
from antiphon.apis.wire import decode
from antiphon.core.errors import NotFoundError
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.context import context_of
from antiphon.http.query import Query
from antiphon.store.records import CompletionFilter, CompletionRecord
from antiphon.store.store import Completions


async def list_completions(request: Request) -> Response:
    """The completions of this key: those of a `model`, with these `metadata[KEY]`."""
    query = Query(request.query_params)
    only = CompletionFilter(query.text("model"), query.prefixed("metadata"))
    found = await _completions(request).list(owner_of(request), only, query.paging("asc"))
    return _json(page([(record.id, record.body) for record in found.data], has_more=found.has_more))


async def retrieve(request: Request) -> Response:
    """One completion."""
    return _json((await _stored(request)).body)


async def update(request: Request) -> Response:
    """Replace what is noted about a completion."""
    metadata = decode(await read_json(request), UpdateRequest).metadata or {}
    record = await _stored(request)
    body = with_metadata(record.body, metadata)
    return _json((await _completions(request).update(record.owner, record.id, metadata, body)).body)


async def delete(request: Request) -> Response:
    """Forget a completion."""
    if not await _completions(request).delete(owner_of(request), _id(request)):
        raise _not_found(request)
    return _json(msgspec.json.encode(Deleted(_id(request))))


async def list_messages(request: Request) -> Response:
    """The messages that a completion answered."""
    record, paging = await _stored(request), Query(request.query_params).paging("asc")
    found = await _completions(request).messages(record.owner, record.id, paging)
    return _json(page([(item.id, item.payload) for item in found.data], has_more=found.has_more))


async def _stored(request: Request) -> CompletionRecord:
    record = await _completions(request).get(owner_of(request), _id(request))
    if record is None:
        raise _not_found(request)
    return record


def _completions(request: Request) -> Completions:
    return context_of(request).worker.store.completions


def _id(request: Request) -> str:
    completion_id: str = request.path_params["completion_id"]
    return completion_id


def _not_found(request: Request) -> NotFoundError:
    return NotFoundError(f"Chat completion with id '{_id(request)}' not found.", param="completion_id")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
