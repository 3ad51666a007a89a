"""POST /v1/chat/completions, with its batches and its prompts."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import time

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.chat.accept import Accepted, accept
from antiphon.apis.chat.answer import Answer
from antiphon.apis.chat.batch import accept_batch
from antiphon.apis.chat.schema import BatchRequest, ChatRequest, RequestMessage
from antiphon.apis.chat.stored import stored_messages
from antiphon.apis.chat.stream import Stream
from antiphon.apis.envelope import Envelope
from antiphon.apis.tokens import Rendered
from antiphon.apis.wire import decode
from antiphon.decode.ids import random_id
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.context import Context, context_of
from antiphon.http.projecting import (
    answer_id,
    answered,
    envelope_of,
    headers_of,
    last_words,
    refuse_foreign_template,
    streamed,
)
from antiphon.http.sse import AnswerResponse, StreamResponse
from antiphon.run.choices import Batch
from antiphon.run.loop import Run, start
from antiphon.store.records import CompletionRecord, ItemRecord

log = structlog.get_logger(__name__)


async def create(request: Request) -> AnswerResponse | StreamResponse:
    """Answer a conversation."""
    context = context_of(request)
    wire = decode(await read_json(request), ChatRequest)
    accepted = accept(wire, owner_of(request), context.house(wire.model))
    turn, view = accepted.turn, accepted.view
    refuse_foreign_template(context, turn.template)
    _note(accepted.mended)
    own = answer_id("chatcmpl-", request, accepted.request_id)
    run = await start(turn, model=context.service.model(turn.model))
    # What is stored is found by its id, so that must be nobody's choice.
    envelope = envelope_of(run, random_id("chatcmpl-", 24) if accepted.store else own, turn.model)
    if accepted.store:
        run = _Keeping(context, accepted, envelope, wire.messages).kept(run)
    headers = headers_of(request, envelope.id)
    if wire.stream:
        source = streamed(run, Stream(envelope, turn.choices, view))
        return StreamResponse(source, last_words, patience=context.options.patience, headers=headers)
    return AnswerResponse(answered(run, Answer(envelope, turn.choices, view)), headers)


async def create_batch(request: Request) -> AnswerResponse:
    """Answer several conversations, each with one choice."""
    context = context_of(request)
    wire = decode(await read_json(request), BatchRequest)
    accepted = accept_batch(wire, owner_of(request), context.house(wire.model))
    refuse_foreign_template(context, wire.chat_template)
    _note(accepted.mended)
    run = await start(*accepted.turns, model=context.service.model(wire.model))
    envelope = envelope_of(run, answer_id("chatcmpl-", request, accepted.request_id), wire.model)
    answer = Answer(envelope, len(accepted.turns), accepted.view)
    return AnswerResponse(answered(run, answer), headers_of(request, envelope.id))


async def render(request: Request) -> Response:
    """The prompt that a request would give."""
    context = context_of(request)
    wire = decode(await read_json(request), ChatRequest)
    turn = accept(wire, owner_of(request), context.house(wire.model)).turn
    refuse_foreign_template(context, turn.template)
    model = context.service.model(turn.model)
    prompt = await model.compose(turn)
    rendered = Rendered(turn.model, prompt.text, prompt.ids, len(prompt.ids), model.card.context)
    return Response(msgspec.json.encode(rendered), media_type="application/json")


def _note(mended: tuple[str, ...]) -> None:
    """Write to the log what was wrong with a history."""
    if mended:
        log.info("history mended", what=mended)


class _Keeping:
    """Stores an answer when it is whole, before its client sees the end of it."""

    def __init__(
        self, context: Context, accepted: Accepted, envelope: Envelope, messages: list[RequestMessage]
    ) -> None:
        self._context = context
        self._accepted = accepted
        self._envelope = envelope
        self._messages = messages

    def kept(self, run: Run) -> Run:
        """The same run, stored at its end."""
        return Run(run.prompts, self._batches(run))

    async def _batches(self, run: Run) -> AsyncGenerator[Batch, None]:
        answer = Answer(self._envelope, self._accepted.turn.choices, self._accepted.view)
        last: Batch = []
        async with aclosing(run.batches) as batches:
            async for batch in batches:
                if last:
                    yield last
                last = batch
                for choice, events in batch:
                    answer.push(choice, events)
        await self._save(answer.body())
        yield last

    async def _save(self, body: bytes) -> None:
        now, metadata = time(), self._accepted.view.metadata
        record = CompletionRecord(
            id=self._envelope.id,
            owner=self._accepted.turn.owner,
            created_at=now,
            model=self._envelope.model,
            body=body,
            metadata={} if metadata is msgspec.UNSET else metadata,
            expires_at=now + self._context.options.keep,
        )
        messages = stored_messages(record.id, self._messages)
        items = [ItemRecord(item_id, "message", payload, now) for item_id, payload in messages]
        await self._context.worker.store.completions.save(record, items)
