"""POST /v1/embeddings, /v1/rerank, /score and /v1/audio/transcriptions: requests that do not generate.

Vectors of texts, and scores of texts; transcriptions, which take a form.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from antiphon.apis.api import OPENAI, Api
from antiphon.apis.vectors import EmbeddingsRequest, RerankRequest, ScoreRequest, TranscriptionForm
from antiphon.apis.wire import check_model
from antiphon.app import vectors
from antiphon.app.app import App
from antiphon.app.metrics import CLIENT_CLOSED
from antiphon.core.errors import RequestError
from antiphon.engines.engine import TranscriptionRequest
from antiphon.http.files import converted, form_of, name_of, pieces_of
from antiphon.http.request import Handler, app_of, json_response, read_request, unless_disconnected

EVENTS = "text/event-stream"
_FORMS = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}

MAX_QUEUED_PARTS = 16
"""Pieces of a body that are read before the client has taken them."""


def handler(use_case: Callable[[App, Any], Awaitable[bytes]], type_: type[Any], api: Api = OPENAI) -> Handler:
    """A handler for a use case; the work ends with its body, or when the client disconnects."""

    async def handle(request: Request) -> Response:
        wire = await read_request(request, type_, api=api)
        body = await unless_disconnected(request, use_case(app_of(request), wire))
        return Response(status_code=CLIENT_CLOSED) if body is None else json_response(body)

    handle.__doc__ = use_case.__doc__
    return handle


async def transcribe(request: Request) -> Response:
    """Transcribe the audio that a form brings."""
    async with form_of(request) as form:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise RequestError("Missing required parameter: 'file'. Send it as a file.", param="file")
        given = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        data = b"".join([piece async for piece in pieces_of(upload)])
        translated = request.url.path.endswith("/translations")
        media_type = upload.content_type or "application/octet-stream"
        if not media_type.isprintable() or not media_type.isascii():  # it becomes a line of another form
            media_type = "application/octet-stream"
        fields = tuple((name, value) for name, value in given if name != "model")
        audio = TranscriptionRequest(data, name_of(upload), media_type, fields, translated)
    transcription = converted(dict(given), TranscriptionForm)
    check_model(transcription.model, app_of(request).limits)
    if not transcription.model and app_of(request).models.default is None:
        message = "Missing required parameter: 'model'."
        raise RequestError(message, param="model", code="missing_required_parameter")
    reading = _Reading(vectors.transcribed(app_of(request), transcription.model, audio))
    try:
        first = await unless_disconnected(request, reading.next())
    except BaseException:
        reading.stop()
        raise
    if first is None:
        reading.stop()
        return Response(status_code=CLIENT_CLOSED)
    answer = EVENTS if transcription.stream else _FORMS.get(transcription.response_format, "application/json")
    return _Transcript(reading, first, answer)


class _Reading:
    """Reads pieces in a separate task: their generator has to begin and to end in one task."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._read: asyncio.Queue[bytes | Exception] = asyncio.Queue(MAX_QUEUED_PARTS)
        self._task = asyncio.ensure_future(self._run(pieces))

    async def _run(self, pieces: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(pieces):  # which gives the slot of the engine back
                async for piece in pieces:
                    await self._read.put(piece)
        except Exception as error:
            await self._read.put(error)
        else:
            await self._read.put(b"")

    async def next(self) -> bytes:
        """The next piece, empty after the last. Raises the errors of the generator."""
        piece = await self._read.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def all(self, piece: bytes) -> AsyncIterator[bytes]:
        """This piece, and all that follow."""
        while piece:
            yield piece
            piece = await self.next()

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()


class _Transcript(StreamingResponse):
    """Pieces that are being read. They are read no more once it is over, also if it never began."""

    def __init__(self, reading: _Reading, first: bytes, media_type: str) -> None:
        super().__init__(reading.all(first), media_type=media_type)
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reading.stop()


embeddings = handler(vectors.embeddings, EmbeddingsRequest)
ranking = handler(vectors.ranking, RerankRequest)
scores = handler(vectors.scores, ScoreRequest)
