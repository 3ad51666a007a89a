"""POST /v1/decisions and /v1/systemone: questions that are answered with probabilities.

System One also takes a form: the request is its part `request`, images are the others.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.decisions.schema import CreateDecision
from antiphon.apis.questions import read
from antiphon.apis.systemone.schema import SystemOneRequest
from antiphon.apis.wire import check_model
from antiphon.app import decisions
from antiphon.app.metrics import CLIENT_CLOSED
from antiphon.core.errors import RequestError
from antiphon.core.observation import observed
from antiphon.http.files import form_of, pieces_of
from antiphon.http.request import (
    LONG_BODY,
    app_of,
    decoded,
    json_response,
    log_ignored,
    owner_of,
    read_json,
    too_large,
    unless_disconnected,
)

T = TypeVar("T", CreateDecision, SystemOneRequest)

REQUEST = "request"
"""The part of a form that is the request."""


async def decide(request: Request) -> Response:
    """Answer questions about an input with probabilities."""
    body = await read_json(request)
    wire = await _decoded(request, body, CreateDecision)
    large = len(body) >= LONG_BODY
    work = decisions.decide(app_of(request), wire, owner_of(request), large=large)
    return _response(await unless_disconnected(request, work))


async def system_one(request: Request) -> Response:
    """Answer questions about a state with probabilities, in the form of System One."""
    body, uploads = await _body(request)
    wire = await _decoded(request, body, SystemOneRequest)
    large = len(body) >= LONG_BODY
    work = decisions.system_one(app_of(request), wire, owner_of(request), uploads, large=large)
    return _response(await unless_disconnected(request, work))


def _response(body: bytes | None) -> Response:
    return Response(status_code=CLIENT_CLOSED) if body is None else json_response(body)


async def _decoded(request: Request, body: bytes, type_: type[T]) -> T:
    """The request; its unknown fields are logged. Raises RequestError."""
    app = app_of(request)
    wire, unknown = await decoded(app, body, lambda: read(body, type_, app.limits))
    check_model(wire.model, app.limits)
    observed().model = wire.model
    log_ignored(unknown)
    return wire


async def _body(request: Request) -> tuple[bytes, Mapping[str, str]]:
    """The JSON of a request, and the images of its form by their names, in base64. Raises RequestError."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        return await read_json(request), {}
    limits = app_of(request).limits
    async with form_of(request, "attachment_bytes", limits.attachments, limits.body_bytes) as form:
        body = await _part(REQUEST, form, REQUEST) if REQUEST in form else b""
        if not body:
            message = f"The form has no part '{REQUEST}', or an empty one. Send the request as JSON in it."
            raise RequestError(message, param=REQUEST)
        if len(body) > limits.body_bytes:  # a file may be as long as all of the form
            raise too_large("body_bytes", limits.body_bytes)
        uploads = [name for name in form if name != REQUEST]
        return body, {name: b64encode(await _part(name, form, "assets")).decode() for name in uploads}


async def _part(name: str, form: FormData, param: str) -> bytes:
    """The bytes of the only part of this name. Raises RequestError."""
    parts = form.getlist(name)
    if len(parts) > 1:
        raise RequestError(f"The form has the part '{name[:64]}' twice.", param=param)
    return await _read(parts[0])


async def _read(part: Any) -> bytes:
    """The bytes of a part of a form: a file, or a text."""
    if isinstance(part, UploadFile):
        return b"".join([piece async for piece in pieces_of(part)])
    return (part or "").encode()
