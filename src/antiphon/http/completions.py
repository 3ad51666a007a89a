"""POST /v1/completions, /tokenize and /detokenize: the model without a conversation."""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.completions.infill import InfillRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.tokens import DetokenizeRequest, tokenize_type
from antiphon.app import completions
from antiphon.http.delivery import EventStream, FullAnswer
from antiphon.http.request import (
    app_of,
    decode_body,
    decoded,
    json_response,
    owner_of,
    read_json,
    read_request,
    request_id_of,
)


async def create(request: Request) -> EventStream | FullAnswer:
    """Go on with texts."""
    app, wire = app_of(request), await read_request(request, CompletionRequest)
    driver = await completions.create(app, wire, owner_of(request), request_id_of(request))
    if wire.stream:
        return EventStream(driver, app.options)
    return FullAnswer(driver, app.options)


async def infill(request: Request) -> EventStream | FullAnswer:
    """Fill the gap between two texts, as llama-server does."""
    app, wire = app_of(request), await read_request(request, InfillRequest)
    driver = await completions.infill(app, wire, owner_of(request), request_id_of(request))
    return EventStream(driver, app.options) if wire.stream else FullAnswer(driver, app.options)


async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of a conversation as the model reads it."""
    body = await read_json(request)
    type_ = await decoded(app_of(request), body, partial(tokenize_type, body))
    wire = await decode_body(request, body, type_)
    tokens = await completions.tokenize(app_of(request), wire, owner_of(request))
    return json_response(msgspec.json.encode(tokens))


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    wire = await read_request(request, DetokenizeRequest)
    return json_response(msgspec.json.encode(await completions.detokenize(app_of(request), wire)))
