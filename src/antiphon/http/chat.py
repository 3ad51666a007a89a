"""POST /v1/chat/completions."""

from time import time

from starlette.requests import Request

from antiphon.apis.chat.accept import accept
from antiphon.apis.chat.answer import Answer
from antiphon.apis.chat.envelope import Envelope
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.stream import Stream
from antiphon.apis.wire import decode
from antiphon.decode.ids import random_id
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.sse import AnswerResponse, StreamResponse
from antiphon.run.loop import start
from antiphon.run.service import Service


async def create_chat_completion(request: Request) -> AnswerResponse | StreamResponse:
    """Answer a conversation."""
    service: Service = request.app.state.service
    wire = decode(await read_json(request), ChatRequest)
    turn = accept(wire, owner_of(request))
    run = await start(turn, service.model(turn.model))
    envelope = Envelope(random_id("chatcmpl-", 24), turn.model, int(time()), run.prompt_tokens)
    if wire.stream:
        return StreamResponse(run, Stream(envelope, turn.choices, include_usage=wire.wants_usage))
    return AnswerResponse(run, Answer(envelope, turn.choices))
