"""POST /v1/completions, /tokenize and /detokenize: the model without a conversation."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.completions.accept import accept
from antiphon.apis.completions.answer import Answer
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.completions.stream import Stream
from antiphon.apis.tokens import Detokenized, DetokenizeRequest, Tokenized, accept_tokenize
from antiphon.apis.wire import decode
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.context import context_of
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
from antiphon.run.loop import start


async def create(request: Request) -> AnswerResponse | StreamResponse:
    """Go on with texts."""
    context = context_of(request)
    wire = decode(await read_json(request), CompletionRequest)
    accepted = accept(wire, owner_of(request), context.view)
    shape, view = accepted.shape, accepted.view
    run = await start(*accepted.turns, model=context.service.model(wire.model))
    envelope = envelope_of(run, answer_id("cmpl-", request, accepted.request_id), wire.model)
    headers = headers_of(request, envelope.id)
    if wire.stream:
        source = streamed(run, Stream(envelope, shape, view))
        return StreamResponse(source, last_words, patience=context.options.patience, headers=headers)
    return AnswerResponse(answered(run, Answer(envelope, shape, view)), headers)


async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of a conversation as the model reads it."""
    context = context_of(request)
    turn, with_texts = accept_tokenize(await read_json(request), owner_of(request), context.house)
    refuse_foreign_template(context, turn.template)
    model = context.service.model(turn.model)
    ids = (await model.compose(turn)).ids
    tokens = Tokenized(len(ids), model.card.context, ids)
    if with_texts:
        tokens.token_strs = [await model.engine.detokenize((token,)) for token in ids]
    return Response(msgspec.json.encode(tokens), media_type="application/json")


async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    wire = decode(await read_json(request), DetokenizeRequest)
    text = await context_of(request).service.model(wire.model).engine.detokenize(wire.tokens)
    return Response(msgspec.json.encode(Detokenized(text)), media_type="application/json")
