"""The endpoints whose requests a batch may have: each line is answered by the use case that HTTP has, too.

To add an endpoint: an entry of `ENDPOINTS`, and of `Endpoint` in `apis/batches/schema.py`; a row of `LINES`
in `tests/http/test_batches.py`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.decisions.schema import CreateDecision
from antiphon.apis.fields import ParameterNames
from antiphon.apis.questions import read
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.vectors import EmbeddingsRequest
from antiphon.apis.wire import check_model, decode_request
from antiphon.app import chat, completions, decisions, vectors
from antiphon.app.app import App
from antiphon.app.batch_source import body_of
from antiphon.app.journal import CallJournal
from antiphon.app.responses.create import as_kept, begin, response_id
from antiphon.core.errors import AntiphonError
from antiphon.core.observation import observed
from antiphon.run.drive import Driver

LONG_BODY = 64 * 1024
"""Bodies of at least this number of bytes are decoded in a thread."""

Answerer = Callable[[App, bytes, str, CallJournal], Awaitable[bytes]]
"""Answers the body of a request of an owner; the calls of server tools go to the journal."""


async def answer(app: App, endpoint: str, body: bytes, owner: str, calls: CallJournal) -> bytes:
    """The body of the answer to a request. Raises AntiphonError."""
    return await ENDPOINTS[endpoint](app, body, owner, calls)


def _answers(type_: type[Any], create: Callable[[App, Any, str, CallJournal], Awaitable[bytes]]) -> Answerer:
    """Answers requests of this type, whose parameters may have several names."""

    async def answered(app: App, body: bytes, owner: str, calls: CallJournal) -> bytes:
        names, models = ParameterNames(), app.models

        def work() -> Any:
            return decode_request(body, type_, names, models.default_name, models.default, app.limits)

        try:
            wire = work() if len(body) < LONG_BODY else await app.large.run(work)
            observed().model = wire.model
            return await create(app, wire, owner, calls)
        except AntiphonError as error:
            names.restore(error)
            raise

    return answered


async def _chat(app: App, wire: ChatRequest, owner: str, calls: CallJournal) -> bytes:
    return await body_of(chat.create(app, wire, owner, calls=calls))


async def _response(app: App, wire: CreateResponse, owner: str, calls: CallJournal) -> bytes:
    async def driver() -> Driver:
        kept = as_kept(app, wire)
        creation = await begin(app, kept, owner, response_id(kept))
        return creation.driver(streamed=False, calls=calls)

    return await body_of(driver())


async def _completion(app: App, wire: CompletionRequest, owner: str, calls: CallJournal) -> bytes:
    return await body_of(completions.create(app, wire, owner, None))


async def _embeddings(app: App, wire: EmbeddingsRequest, owner: str, calls: CallJournal) -> bytes:
    return await vectors.embeddings(app, wire)


async def _decision(app: App, body: bytes, owner: str, calls: CallJournal) -> bytes:
    wire, _ = read(body, CreateDecision, app.limits)
    check_model(wire.model, app.limits)
    observed().model = wire.model
    return await decisions.decide(app, wire, owner, large=len(body) >= LONG_BODY)


ENDPOINTS: Mapping[str, Answerer] = {
    "/v1/chat/completions": _answers(ChatRequest, _chat),
    "/v1/responses": _answers(CreateResponse, _response),
    "/v1/completions": _answers(CompletionRequest, _completion),
    "/v1/embeddings": _answers(EmbeddingsRequest, _embeddings),
    "/v1/decisions": _decision,
}
