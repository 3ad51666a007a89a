"""POST /v1/messages/batches, and the endpoints of a batch."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from antiphon.apis.messages.batch import CreateMessageBatch
from antiphon.app import message_batches
from antiphon.app.app import App
from antiphon.http.request import app_of, json_response, owner_of, query_of, read_body
from antiphon.store.records import Paging, ResponseRecord

MOST_ON_PAGE = 1000


async def create(request: Request) -> Response:
    """Create a batch, which is answered in the background."""
    wire = await read_body(request, CreateMessageBatch)
    return _response(request, await message_batches.create(app_of(request), wire, owner_of(request)))


async def list_batches(request: Request) -> Response:
    """Batches, the newest first."""
    query = query_of(request)
    limit = query.number("limit", Paging().limit, minimum=1, maximum=MOST_ON_PAGE)
    paging = Paging("desc", query.text("after_id"), query.text("before_id"), limit)
    page = await message_batches.list_batches(app_of(request), owner_of(request), paging)
    return json_response(msgspec.json.encode(message_batches.shown_page(page, _results_url(request))))


async def retrieve(request: Request) -> Response:
    """A batch in its current state."""
    return _response(request, await message_batches.retrieve(*_target(request)))


async def cancel(request: Request) -> Response:
    """Answer no more of its requests."""
    return _response(request, await message_batches.cancel(*_target(request)))


async def results(request: Request) -> Response:
    """The results of a batch that has ended, one per line."""
    lines = await message_batches.results(*_target(request))
    return StreamingResponse(lines, media_type="application/x-jsonl")


def _response(request: Request, record: ResponseRecord) -> Response:
    return json_response(msgspec.json.encode(message_batches.resource_of(record, _results_url(request))))


def _results_url(request: Request) -> Callable[[str], str]:
    return lambda batch_id: f"{request.base_url}v1/messages/batches/{batch_id}/results"


def _target(request: Request) -> tuple[App, str, str]:
    """The app, the owner and the id of the batch."""
    return app_of(request), owner_of(request), request.path_params["batch_id"]
