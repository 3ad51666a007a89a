"""POST /tokenize and /detokenize: the model without a conversation."""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.llama_server import TokenizeContentRequest
from antiphon.apis.tokens import DetokenizeRequest, tokenize_type
from antiphon.app import completions, llama_server
from antiphon.http.request import (
    app_of,
    decode_body,
    decoded,
    json_response,
    owner_of,
    read_json,
    read_request,
)


async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of a conversation as the model reads it."""
    body = await read_json(request)
    type_ = await decoded(app_of(request), body, partial(tokenize_type, body))
    wire = await decode_body(request, body, type_)
    app, owner = app_of(request), owner_of(request)
    if isinstance(wire, TokenizeContentRequest):
        return json_response(msgspec.json.encode(await llama_server.tokenize(app, wire, owner)))
    return json_response(msgspec.json.encode(await completions.tokenize(app, wire, owner)))


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    wire = await read_request(request, DetokenizeRequest)
    return json_response(msgspec.json.encode(await completions.detokenize(app_of(request), wire)))
