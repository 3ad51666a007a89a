"""POST /v1/responses/input_tokens and …/compact: how long a conversation is, and a shorter one."""

import time
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.responses.accept import prompting
from antiphon.apis.responses.compact import accept_compact, compacted
from antiphon.apis.responses.resource import TokenCounts
from antiphon.apis.responses.schema import CompactRequest, CountTokens
from antiphon.apis.responses.usage import Tally
from antiphon.apis.wire import decode
from antiphon.decode.ids import random_id
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.context import context_of
from antiphon.http.responses.asking import read
from antiphon.http.responses.compacting import summarise
from antiphon.http.responses.endpoints import json
from antiphon.http.sse import AnswerResponse


async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a request has, also if that is too many."""
    context, owner = context_of(request), owner_of(request)
    wire = decode(await read_json(request), CountTokens)
    model = context.service.model(wire.model)
    turn = prompting(wire, await read(context, wire, owner, random_id("resp_", 48)))
    return json(msgspec.json.encode(TokenCounts(len((await model.compose(turn)).ids))))


async def compact(request: Request) -> AnswerResponse:
    """A shorter conversation that stands for a long one."""
    context, owner = context_of(request), owner_of(request)
    wire = decode(await read_json(request), CompactRequest)
    model = context.service.model(wire.model)
    reading = await read(context, wire, owner, random_id("cmp_", 48))
    compacting = accept_compact(wire, reading)

    async def body() -> bytes:
        summary, tally = await summarise(compacting.turn, model), Tally()
        tally.prompt_tokens = summary.prompt_tokens
        tally.add(summary.usage)
        seal = partial(context.sealer.seal, owner)
        return compacted(compacting, summary.text, seal, int(time.time()), tally)

    return AnswerResponse(body())
