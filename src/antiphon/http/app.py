"""The ASGI application: routes, errors and middleware, assembled in one place."""

from collections.abc import Awaitable, Callable, Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute

from antiphon.apis.responses.sealing import Sealer
from antiphon.core.errors import AntiphonError
from antiphon.http import chat, completions, stored_completions
from antiphon.http.auth import KeyMiddleware
from antiphon.http.context import Context, Options
from antiphon.http.errors import on_antiphon_error, on_exception, on_http_exception
from antiphon.http.models import health, list_models, retrieve_model, version
from antiphon.http.responses import conversations, endpoints, measuring
from antiphon.http.responses.jobs import prepare
from antiphon.http.responses.projection import bury
from antiphon.http.responses.socket import converse
from antiphon.run.service import Service
from antiphon.run.worker import LEASE, Job, Worker
from antiphon.store.records import ResponseRecord
from antiphon.store.store import Store

GET, POST, DELETE = ["GET"], ["POST"], ["DELETE"]

_COMPLETION = "/v1/chat/completions/{completion_id}"
_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEM = _CONVERSATION + "/items/{item_id}"

ROUTES = [
    Route("/v1/chat/completions", chat.create, methods=POST),
    Route("/v1/chat/completions", stored_completions.list_completions, methods=GET),
    Route("/v1/chat/completions/render", chat.render, methods=POST),
    Route("/v1/chat/completions/batch", chat.create_batch, methods=POST),
    Route(_COMPLETION, stored_completions.retrieve, methods=GET),
    Route(_COMPLETION, stored_completions.update, methods=POST),
    Route(_COMPLETION, stored_completions.delete, methods=DELETE),
    Route(_COMPLETION + "/messages", stored_completions.list_messages, methods=GET),
    Route("/v1/completions", completions.create, methods=POST),
    Route("/tokenize", completions.tokenize, methods=POST),
    Route("/detokenize", completions.detokenize, methods=POST),
    Route("/v1/responses", endpoints.create, methods=POST),
    WebSocketRoute("/v1/responses", converse),
    Route("/v1/responses/input_tokens", measuring.count_input_tokens, methods=POST),
    Route("/v1/responses/compact", measuring.compact, methods=POST),
    Route(_RESPONSE, endpoints.retrieve, methods=GET),
    Route(_RESPONSE, endpoints.delete, methods=DELETE),
    Route(_RESPONSE + "/cancel", endpoints.cancel, methods=POST),
    Route(_RESPONSE + "/input_items", endpoints.list_input_items, methods=GET),
    Route("/v1/conversations", conversations.create, methods=POST),
    Route(_CONVERSATION, conversations.retrieve, methods=GET),
    Route(_CONVERSATION, conversations.update, methods=POST),
    Route(_CONVERSATION, conversations.delete, methods=DELETE),
    Route(_CONVERSATION + "/items", conversations.create_items, methods=POST),
    Route(_CONVERSATION + "/items", conversations.list_items, methods=GET),
    Route(_ITEM, conversations.retrieve_item, methods=GET),
    Route(_ITEM, conversations.delete_item, methods=DELETE),
    Route("/v1/models", list_models),
    Route("/v1/models/{model:path}", retrieve_model),
    Route("/health", health),
    Route("/version", version),
]


def connect(  # noqa: PLR0913 - the parts of a server
    service: Service,
    store: Callable[[], Awaitable[Store]],
    sealer: Sealer,
    options: Options,
    jobs: int,
    *,
    lease: float = LEASE,
) -> Context:
    """The context of a server, with a worker that answers stored responses through the same APIs."""

    async def job(record: ResponseRecord) -> Job:
        return await prepare(context, record)

    context = Context(service, Worker(store, job, bury, jobs=jobs, lease=lease), sealer, options)
    return context


def build(context: Context, keys: Iterable[str] = ()) -> Starlette:
    """The application over a context. The caller starts and stops what is in it."""
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(KeyMiddleware, keys=tuple(keys))],
        exception_handlers={
            AntiphonError: on_antiphon_error,
            HTTPException: on_http_exception,
            Exception: on_exception,
        },
    )
    app.state.context = context
    return app
