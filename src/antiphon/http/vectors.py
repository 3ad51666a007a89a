"""POST /v1/embeddings, /v1/rerank and /score: vectors of texts, and how well they answer others."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.vectors import EmbeddingsRequest, RerankRequest, ScoreRequest
from antiphon.app import vectors
from antiphon.app.app import App
from antiphon.core.observation import observed
from antiphon.http.request import Handler, app_of, json_response, read_request
from antiphon.run.endings import ClientLeftError

CLIENT_CLOSED = 499
"""The status that nobody gets any more; it is for the log."""


def handler(use_case: Callable[[App, Any], Awaitable[bytes]], type_: type[Any]) -> Handler:
    """Handles requests for a use case that works until its body is there, or the client has left."""

    async def handle(request: Request) -> Response:
        wire = await read_request(request, type_)
        work = asyncio.ensure_future(use_case(app_of(request), wire))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return json_response(work.result())
            observed().fail(ClientLeftError())
            return Response(status_code=CLIENT_CLOSED)
        finally:
            for task in (work, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # it was told, or nobody is there to be told
                await work

    handle.__doc__ = use_case.__doc__
    return handle


async def _left(request: Request) -> None:
    """Wait until the client is gone. The body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


embeddings = handler(vectors.embeddings, EmbeddingsRequest)
ranking = handler(vectors.ranking, RerankRequest)
scores = handler(vectors.scores, ScoreRequest)
