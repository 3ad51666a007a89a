"""GET /props and /slots, POST /apply-template: what llama-server's clients read beside answers."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.llama_server import ApplyTemplateRequest
from antiphon.app import llama_server
from antiphon.core.errors import EngineNotReadyError
from antiphon.http.request import app_of, json_response, owner_of, query_of, read_request


async def props(request: Request) -> Response:
    """The properties of a model: its context, its slots, its chat template."""
    name = query_of(request).text("model")
    return json_response(msgspec.json.encode(await llama_server.props(app_of(request), name)))


async def slots(request: Request) -> Response:
    """The places for answers of a model; with `fail_on_no_slot`, 503 if none is free."""
    query = query_of(request)
    listed = await llama_server.slots_of(app_of(request), query.text("model"))
    if query.flag("fail_on_no_slot") and all(slot.is_processing for slot in listed):
        raise EngineNotReadyError("All slots are processing. Try again in a moment.")
    return json_response(msgspec.json.encode(listed))


async def apply_template(request: Request) -> Response:
    """The prompt that a conversation gives."""
    wire = await read_request(request, ApplyTemplateRequest)
    prompt = await llama_server.apply_template(app_of(request), wire, owner_of(request))
    return json_response(msgspec.json.encode(prompt))
