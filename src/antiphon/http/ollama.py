"""Ollama's lists and descriptions of models, its version, and the routes of it that are refused."""

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.ollama.api import OLLAMA
from antiphon.apis.ollama.schema import EmbeddingsRequest, EmbedRequest, ModelRequest
from antiphon.app import ollama
from antiphon.core.errors import RequestError
from antiphon.http import vectors
from antiphon.http.request import app_of, json_response, read_request


async def tags(request: Request) -> Response:
    """The names that requests may use."""
    return _response(ollama.tags(app_of(request)))


async def loaded(request: Request) -> Response:
    """The models that are loaded."""
    return _response(ollama.loaded(app_of(request)))


async def version(request: Request) -> Response:
    """The version of Ollama's API."""
    return _response(ollama.version())


async def show(request: Request) -> Response:
    """What is known of a model."""
    return _response(await ollama.show(app_of(request), await _read(request)))


async def pull(request: Request) -> Response:
    """Nothing, for a model that is there; others are not fetched."""
    wire = await _read(request)
    body = msgspec.json.encode(ollama.pull(app_of(request), wire))
    if wire.stream is False:
        return json_response(body)
    return Response(body + b"\n", headers={"content-type": OLLAMA.media_type.decode()})


async def refuse(request: Request) -> Response:
    """Refused: models are managed by the operator of the server."""
    message = f"{request.scope['path']} is not served: the operator starts the server with its models."
    raise RequestError(message)


async def _read(request: Request) -> ModelRequest:
    return await read_request(request, ModelRequest, "small_body_bytes", OLLAMA)


def _response(body: Struct) -> Response:
    return json_response(msgspec.json.encode(body))


embed = vectors.handler(ollama.embed, EmbedRequest, OLLAMA)
embeddings = vectors.handler(ollama.embeddings, EmbeddingsRequest, OLLAMA)
