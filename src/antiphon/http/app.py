"""The ASGI application: routes, errors and middleware, assembled in one place."""

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute

from antiphon.app.app import App
from antiphon.core.errors import AntiphonError
from antiphon.http import (
    chat,
    completions,
    conversations,
    message_batches,
    messages,
    responses,
    stored_completions,
)
from antiphon.http.auth import KeyMiddleware
from antiphon.http.errors import on_antiphon_error, on_exception, on_http_exception
from antiphon.http.models import health, list_models, reachable, retrieve_model, version
from antiphon.http.request import RequestIdMiddleware
from antiphon.http.socket import converse

GET, POST, DELETE = ["GET"], ["POST"], ["DELETE"]

_COMPLETION = "/v1/chat/completions/{completion_id}"
_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEM = _CONVERSATION + "/items/{item_id}"
_BATCH = "/v1/messages/batches/{batch_id}"

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
    Route("/v1/responses", responses.create, methods=POST),
    WebSocketRoute("/v1/responses", converse),
    Route("/v1/responses/input_tokens", responses.count_input_tokens, methods=POST),
    Route("/v1/responses/compact", responses.compact, methods=POST),
    Route(_RESPONSE, responses.retrieve, methods=GET),
    Route(_RESPONSE, responses.delete, methods=DELETE),
    Route(_RESPONSE + "/cancel", responses.cancel, methods=POST),
    Route(_RESPONSE + "/input_items", responses.list_input_items, methods=GET),
    Route("/v1/conversations", conversations.create, methods=POST),
    Route(_CONVERSATION, conversations.retrieve, methods=GET),
    Route(_CONVERSATION, conversations.update, methods=POST),
    Route(_CONVERSATION, conversations.delete, methods=DELETE),
    Route(_CONVERSATION + "/items", conversations.create_items, methods=POST),
    Route(_CONVERSATION + "/items", conversations.list_items, methods=GET),
    Route(_ITEM, conversations.retrieve_item, methods=GET),
    Route(_ITEM, conversations.delete_item, methods=DELETE),
    Route("/v1/messages", messages.create, methods=POST),
    Route("/v1/messages/count_tokens", messages.count_tokens, methods=POST),
    Route("/v1/messages/batches", message_batches.create, methods=POST),
    Route("/v1/messages/batches", message_batches.list_batches, methods=GET),
    Route(_BATCH, message_batches.retrieve, methods=GET),
    Route(_BATCH, message_batches.delete, methods=DELETE),
    Route(_BATCH + "/cancel", message_batches.cancel, methods=POST),
    Route(_BATCH + "/results", message_batches.results, methods=GET),
    Route("/v1/models", list_models),
    Route("/v1/models/{model:path}", retrieve_model),
    Route("/", reachable, methods=["HEAD"]),
    Route("/health", health),
    Route("/version", version),
]


def build(app: App, keys: Iterable[str] = ()) -> Starlette:
    """The ASGI application over the use cases. The caller starts and stops what they need."""
    asgi = Starlette(
        routes=ROUTES,
        middleware=[Middleware(RequestIdMiddleware), Middleware(KeyMiddleware, keys=tuple(keys))],
        exception_handlers={
            AntiphonError: on_antiphon_error,
            HTTPException: on_http_exception,
            Exception: on_exception,
        },
    )
    asgi.state.app = app
    return asgi
