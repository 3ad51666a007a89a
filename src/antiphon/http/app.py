"""The ASGI application: routes, errors and middleware, assembled in one place."""

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from http import HTTPStatus

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from antiphon.apis.api import OPENAI
from antiphon.apis.chat.resource import ChatCompletion
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.chat.stored import UpdateRequest
from antiphon.apis.completions.infill import Infill, InfillRequest
from antiphon.apis.completions.resource import Completion
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.containers.schema import CreateContainer
from antiphon.apis.conversations.schema import CreateConversation, CreateItems, UpdateConversation
from antiphon.apis.decisions.schema import CreateDecision, DecisionBody
from antiphon.apis.files.schema import CompleteUpload, CreateUpload
from antiphon.apis.generate.resource import Generated
from antiphon.apis.generate.schema import GenerateTokens
from antiphon.apis.messages.api import MESSAGES
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.ollama.api import OLLAMA
from antiphon.apis.ollama.resource import ChatLine, GenerateLine
from antiphon.apis.ollama.schema import ChatRequest as OllamaChatRequest
from antiphon.apis.ollama.schema import GenerateRequest
from antiphon.apis.responses.steering import SteerResponse
from antiphon.apis.systemone.api import SYSTEM_ONE
from antiphon.apis.systemone.schema import SystemOneAnswers, SystemOneBody
from antiphon.apis.vector_stores import schema as vectors
from antiphon.apis.wire import prepare_types
from antiphon.app import batches as batch_jobs
from antiphon.app import chat as chats
from antiphon.app import completions as texts
from antiphon.app import containers as programs
from antiphon.app import conversations, debug, stored_completions, uploads, vector_stores
from antiphon.app import files as uploaded
from antiphon.app import generate as tokens
from antiphon.app import message_batches as message_batch_jobs
from antiphon.app import messages as anthropic
from antiphon.app import ollama as native
from antiphon.app.app import App
from antiphon.app.responses import stored
from antiphon.app.responses.steer import steer
from antiphon.core.accounts import LIMIT_HEADERS
from antiphon.core.errors import NotFoundError
from antiphon.http import (
    batches,
    chat,
    completions,
    containers,
    decisions,
    files,
    llama_server,
    message_batches,
    messages,
    moderation,
    ollama,
    rendering,
    responses,
)
from antiphon.http.auth import KeyMiddleware
from antiphon.http.errors import NOT_SERVED
from antiphon.http.leaving import LeavingMiddleware
from antiphon.http.models import (
    drain_replica,
    health,
    list_models,
    list_replicas,
    load_adapter,
    ready,
    resume_replica,
    retrieve_model,
    unload_adapter,
    version,
)
from antiphon.http.observing import ObservingMiddleware, metrics
from antiphon.http.openapi import document
from antiphon.http.page import asset, index, reference
from antiphon.http.request import body, handler, json_response, paging
from antiphon.http.routes import AnswerTypes, ApiRoute, ApiTable, answers
from antiphon.http.socket import converse
from antiphon.http.vectors import embeddings, ranking, scores, transcribe

GET, POST, DELETE = ["GET"], ["POST"], ["DELETE"]

EXPOSED_HEADERS = [
    "x-request-id",
    "request-id",
    "retry-after",
    *(f"x-ratelimit-{name}-{unit}" for unit in ("requests", "tokens") for name in LIMIT_HEADERS),
    *(f"anthropic-ratelimit-{unit}-{name}" for unit in ("requests", "tokens") for name in LIMIT_HEADERS),
]
"""Headers of responses that pages of other origins may read."""

_COMPLETION = "/v1/chat/completions/{completion_id}"
_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEM = _CONVERSATION + "/items/{item_id}"
_FILE = "/v1/files/{file_id}"
_UPLOAD = "/v1/uploads/{upload_id}"
_VECTORS = "/v1/vector_stores/{vector_store_id}"
_VECTORS_FILE = _VECTORS + "/files/{file_id}"
_VECTORS_BATCH = _VECTORS + "/file_batches/{batch_id}"
_CONTAINER = "/v1/containers/{container_id}"
_CONTAINER_FILE = _CONTAINER + "/files/{file_id}"
_BATCH = "/v1/batches/{batch_id}"
_MESSAGE_BATCH = "/v1/messages/batches/{batch_id}"

_COMPLETION_CHANGE = body(UpdateRequest, "small_body_bytes")
_CONVERSATION_CHANGE = body(UpdateConversation, "small_body_bytes")

_CREATE_VECTORS = body(vectors.CreateVectorStore)
_UPDATE_VECTORS = body(vectors.UpdateVectorStore, "small_body_bytes")
_ATTACH = body(vectors.CreateVectorStoreFile, "small_body_bytes")
_UPDATE_FILE = body(vectors.UpdateVectorStoreFile, "small_body_bytes")
_SEARCH = body(vectors.SearchRequest)
_FILES_OF = (files.status_filter, paging())

_list_responses = handler(stored.list_responses, responses.background_filter, paging())
_list_completions = handler(stored_completions.list_completions, chat.stored_filter, paging("asc"))


@cache
def _openapi(root: str) -> bytes:
    return msgspec.json.encode(document(ROUTES, root))


async def openapi(request: Request) -> Response:
    """The OpenAPI document of the server."""
    return json_response(await asyncio.to_thread(_openapi, request.scope.get("root_path", "")))


ROUTES = [
    answers("/v1/chat/completions", ChatRequest, chats.create, ChatCompletion),
    Route("/v1/chat/completions", _list_completions, methods=GET),
    Route("/v1/chat/completions/render", rendering.chat, methods=POST),
    Route("/v1/chat/completions/batch", chat.create_batch, methods=POST),
    Route(_COMPLETION, handler(stored_completions.retrieve), methods=GET),
    Route(_COMPLETION, handler(stored_completions.update, _COMPLETION_CHANGE), methods=POST),
    Route(_COMPLETION, handler(stored_completions.delete), methods=DELETE),
    Route(_COMPLETION + "/messages", handler(stored_completions.list_messages, paging("asc")), methods=GET),
    answers("/v1/completions", CompletionRequest, texts.create, Completion),
    Route("/v1/completions/render", rendering.completion, methods=POST),
    answers("/inference/v1/generate", GenerateTokens, tokens.create, Generated),
    answers("/infill", InfillRequest, texts.infill, Infill),
    Route("/tokenize", completions.tokenize, methods=POST),
    Route("/detokenize", completions.detokenize, methods=POST),
    ApiRoute("/v1/decisions", decisions.decide, OPENAI, POST, AnswerTypes(CreateDecision, DecisionBody)),
    ApiRoute(
        "/v1/systemone", decisions.system_one, SYSTEM_ONE, POST, AnswerTypes(SystemOneBody, SystemOneAnswers)
    ),
    Route("/apply-template", llama_server.apply_template, methods=POST),
    Route("/props", llama_server.props, methods=GET),
    Route("/slots", llama_server.slots, methods=GET),
    Route("/v1/embeddings", embeddings, methods=POST),
    Route("/v1/rerank", ranking, methods=POST),
    Route("/v2/rerank", ranking, methods=POST),
    Route("/rerank", ranking, methods=POST),
    Route("/v1/score", scores, methods=POST),
    Route("/score", scores, methods=POST),
    Route("/v1/moderations", moderation.create, methods=POST),
    Route("/v1/audio/transcriptions", transcribe, methods=POST),
    Route("/v1/audio/translations", transcribe, methods=POST),
    Route("/v1/responses", responses.create, methods=POST),
    WebSocketRoute("/v1/responses", converse),
    Route("/v1/responses", _list_responses, methods=GET),
    Route("/v1/responses/input_tokens", responses.count_input_tokens, methods=POST),
    Route("/v1/responses/compact", responses.compact, methods=POST),
    Route("/v1/responses/render", rendering.response, methods=POST),
    Route(_RESPONSE, responses.retrieve, methods=GET),
    Route(_RESPONSE, handler(stored.delete), methods=DELETE),
    Route(_RESPONSE + "/cancel", handler(stored.cancel), methods=POST),
    Route(_RESPONSE + "/steer", handler(steer, body(SteerResponse)), methods=POST),
    Route(_RESPONSE + "/input_items", handler(stored.list_input_items, paging()), methods=GET),
    Route("/v1/conversations", handler(conversations.create, body(CreateConversation)), methods=POST),
    Route(_CONVERSATION, handler(conversations.retrieve), methods=GET),
    Route(_CONVERSATION, handler(conversations.update, _CONVERSATION_CHANGE), methods=POST),
    Route(_CONVERSATION, handler(conversations.delete), methods=DELETE),
    Route(_CONVERSATION + "/items", handler(conversations.create_items, body(CreateItems)), methods=POST),
    Route(_CONVERSATION + "/items", handler(conversations.list_items, paging()), methods=GET),
    Route(_ITEM, handler(conversations.retrieve_item), methods=GET),
    Route(_ITEM, handler(conversations.delete_item), methods=DELETE),
    Route("/v1/files", files.create, methods=POST),
    Route("/v1/files", handler(uploaded.list_files, files.list_filter, files.paging), methods=GET),
    Route(_FILE, handler(uploaded.retrieve), methods=GET),
    Route(_FILE, handler(uploaded.delete), methods=DELETE),
    Route(_FILE + "/content", files.content, methods=GET),
    Route("/v1/uploads", handler(uploads.create, body(CreateUpload, "small_body_bytes")), methods=POST),
    Route(_UPLOAD + "/parts", files.add_part, methods=POST),
    Route(_UPLOAD + "/complete", handler(uploads.complete, body(CompleteUpload)), methods=POST),
    Route(_UPLOAD + "/cancel", handler(uploads.cancel), methods=POST),
    Route("/v1/containers", handler(programs.create, body(CreateContainer)), methods=POST),
    Route(
        "/v1/containers",
        handler(programs.list_containers, containers.name_filter, paging()),
        methods=GET,
    ),
    Route(_CONTAINER, handler(programs.retrieve), methods=GET),
    Route(_CONTAINER, handler(programs.delete), methods=DELETE),
    Route(_CONTAINER + "/files", containers.create_file, methods=POST),
    Route(_CONTAINER + "/files", handler(programs.list_files, paging()), methods=GET),
    Route(_CONTAINER_FILE, handler(programs.retrieve_file), methods=GET),
    Route(_CONTAINER_FILE, handler(programs.delete_file), methods=DELETE),
    Route(_CONTAINER_FILE + "/content", containers.content, methods=GET),
    Route("/v1/vector_stores", handler(vector_stores.create, _CREATE_VECTORS), methods=POST),
    Route("/v1/vector_stores", handler(vector_stores.list_vector_stores, paging()), methods=GET),
    Route(_VECTORS, handler(vector_stores.retrieve), methods=GET),
    Route(_VECTORS, handler(vector_stores.update, _UPDATE_VECTORS), methods=POST),
    Route(_VECTORS, handler(vector_stores.delete), methods=DELETE),
    Route(_VECTORS + "/search", handler(vector_stores.search, _SEARCH), methods=POST),
    Route(_VECTORS + "/files", handler(vector_stores.attach, _ATTACH), methods=POST),
    Route(_VECTORS + "/files", handler(vector_stores.list_files, *_FILES_OF), methods=GET),
    Route(_VECTORS_FILE, handler(vector_stores.retrieve_file), methods=GET),
    Route(_VECTORS_FILE, handler(vector_stores.update_file, _UPDATE_FILE), methods=POST),
    Route(_VECTORS_FILE, handler(vector_stores.detach), methods=DELETE),
    Route(_VECTORS_FILE + "/content", handler(vector_stores.file_content), methods=GET),
    Route(
        _VECTORS + "/file_batches",
        handler(vector_stores.create_batch, body(vectors.CreateFileBatch)),
        methods=POST,
    ),
    Route(_VECTORS_BATCH, handler(vector_stores.retrieve_batch), methods=GET),
    Route(_VECTORS_BATCH + "/cancel", handler(vector_stores.cancel_batch), methods=POST),
    Route(_VECTORS_BATCH + "/files", handler(vector_stores.list_batch_files, *_FILES_OF), methods=GET),
    Route("/v1/batches", batches.create, methods=POST),
    Route("/v1/batches", handler(batch_jobs.list_batches, paging()), methods=GET),
    Route(_BATCH, handler(batch_jobs.retrieve), methods=GET),
    Route(_BATCH + "/cancel", handler(batch_jobs.cancel), methods=POST),
    answers("/v1/messages", CreateMessage, anthropic.create, api=MESSAGES),
    ApiRoute("/v1/messages/count_tokens", messages.count_tokens, MESSAGES, POST),
    ApiRoute("/v1/messages/render", rendering.message, MESSAGES, POST),
    ApiRoute("/v1/messages/batches", message_batches.create, MESSAGES, POST),
    ApiRoute("/v1/messages/batches", message_batches.list_batches, MESSAGES, GET),
    ApiRoute(_MESSAGE_BATCH, message_batches.retrieve, MESSAGES, GET),
    ApiRoute(_MESSAGE_BATCH, handler(message_batch_jobs.delete), MESSAGES, DELETE),
    ApiRoute(_MESSAGE_BATCH + "/cancel", message_batches.cancel, MESSAGES, POST),
    ApiRoute(_MESSAGE_BATCH + "/results", message_batches.results, MESSAGES, GET),
    answers("/api/chat", OllamaChatRequest, native.chat, ChatLine, OLLAMA),
    answers("/api/generate", GenerateRequest, native.generate, GenerateLine, OLLAMA),
    ApiRoute("/api/embed", ollama.embed, OLLAMA, POST),
    ApiRoute("/api/embeddings", ollama.embeddings, OLLAMA, POST),
    ApiRoute("/api/tags", ollama.tags, OLLAMA, GET),
    ApiRoute("/api/ps", ollama.loaded, OLLAMA, GET),
    ApiRoute("/api/show", ollama.show, OLLAMA, POST),
    ApiRoute("/api/version", ollama.version, OLLAMA, GET),
    ApiRoute("/api/pull", ollama.pull, OLLAMA, POST),
    *(ApiRoute(path, ollama.refuse, OLLAMA, POST) for path in ("/api/push", "/api/create", "/api/copy")),
    ApiRoute("/api/delete", ollama.refuse, OLLAMA, DELETE),
    ApiRoute("/api/blobs/{digest}", ollama.refuse, OLLAMA, ["HEAD", "POST"]),
    Route("/v1/models", list_models),
    Route("/v1/load_lora_adapter", load_adapter, methods=POST),
    Route("/v1/unload_lora_adapter", unload_adapter, methods=POST),
    Route("/v1/replicas", list_replicas, methods=GET),
    Route("/v1/replicas/drain", drain_replica, methods=POST),
    Route("/v1/replicas/resume", resume_replica, methods=POST),
    Route("/v1/models/{model:path}", retrieve_model),  # names have slashes, as `meta-llama/Llama-3.1-8B`
    Route("/v1/debug", handler(debug.list_records), methods=GET),
    Route("/v1/debug/{answer_id}", handler(debug.retrieve), methods=GET),
    Route("/v1/status", handler(debug.status), methods=GET),
    Route("/", index, methods=GET),
    Route("/page/{path:path}", asset, methods=GET),
    Route("/docs", reference, methods=GET),
    Route("/openapi.json", openapi, methods=GET),
    Route("/health", health),
    Route("/ready", ready),
    Route("/metrics", metrics),
    Route("/version", version),
]


MIN_SIMILARITY = 0.8
"""The least similarity of a path to an existing one (1 is equal) for an error to suggest that."""
LONGEST_PATH = 200
"""The longest path in characters that is compared with others."""


class _Routes(Router):
    """Starlette's router, with a dictionary of the paths without ids, to avoid a search in the table."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes, redirect_slashes=False)  # paths end in none: see `ObservingMiddleware`
        self._http = [route for route in routes if isinstance(route, Route)]
        self._fixed = {
            (method, route.path): route
            for route in self._http
            if not route.param_convertors
            for method in route.methods or ()
        }
        self._fixed_paths = {path for _, path in self._fixed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to its handler, and return the response. Raises HTTPException if there is none."""
        route = self._fixed.get((scope.get("method", ""), scope.get("path", "")))
        if route is None and scope["type"] == "http" and scope["path"] in self._fixed_paths:
            raise self._not_allowed(scope["path"])  # not a path with an id that is called like this
        if route is None:
            await self._search(scope, receive, send)
            return
        scope["route"] = route  # as Starlette does for the others: metrics use it
        response = await route.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _search(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Go through the table. The error of a wrong method names all methods of the path."""
        try:
            await super().__call__(scope, receive, send)
        except HTTPException as error:
            if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
                raise
            matching = (route for route in self._http if route.matches(scope)[0] != Match.NONE)
            raise self._not_allowed(next(matching).path) from error

    async def not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise NotFoundError, which suggests a similar path if there is one."""
        path = scope["path"]
        known = scope["type"] != "http" or len(path) > LONGEST_PATH or path.startswith((*NOT_SERVED,))
        paths = [route.path for route in self._http]
        if not known and (near := get_close_matches(path, paths, 1, MIN_SIMILARITY)):
            raise NotFoundError(f"There is nothing at {path}. Did you mean {near[0]}?")
        await super().not_found(scope, receive, send)

    def _not_allowed(self, path: str) -> HTTPException:
        """The error for a method that a path of the table does not have; it names those that it has."""
        methods = {method for route in self._http if route.path == path for method in route.methods or ()}
        return HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(sorted(methods))})


class _StorelessRoutes(_Routes):
    """The routes of a server that stores nothing: no object that a client could keep exists there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(_STORED) and path not in _NOT_STORED:
            raise NotFoundError(f"There is nothing at {path[:LONGEST_PATH]}. {STORES_NOTHING}")
        await super().__call__(scope, receive, send)


STORES_NOTHING = "This server stores nothing: it was started with --store none."
_STORED = (
    *("/v1/responses/", "/v1/chat/completions/", "/v1/messages/batches", "/v1/conversations"),
    *("/v1/files", "/v1/uploads", "/v1/vector_stores", "/v1/containers", "/v1/batches"),
)
"""The beginnings of paths of what is stored."""
_NOT_STORED = frozenset(
    {
        *("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/responses/render"),
        *("/v1/chat/completions/render", "/v1/chat/completions/batch"),
    }
)
"""The paths that begin so, and are of something else."""


class _Cors(CORSMiddleware):
    """Starlette's, which would let any page into a private network."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight request."""
        response = super().preflight_response(request_headers)
        if not self.is_allowed_origin(request_headers["origin"]):
            del response.headers["access-control-allow-private-network"]
        return response


class _RootPath:
    """Removes the prefix of the server from paths, unless a proxy has done so."""

    def __init__(self, asgi: ASGIApp, root: str) -> None:
        self._asgi = asgi
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        path: str = scope.get("path", "")
        if path == self._root or path.startswith(f"{self._root}/"):
            path = path[len(self._root) :] or "/"
        await self._asgi({**scope, "path": path, "root_path": self._root}, receive, send)


def build(app: App, *, routes: Sequence[BaseRoute] = ROUTES) -> ASGIApp:
    """The ASGI application for the use cases. The caller starts and stops their dependencies.

    Features that are not configured add no middleware.
    """
    prepare_types()
    settings = app.settings
    table = _Routes(routes) if settings.stores else _StorelessRoutes(routes)
    asgi: ASGIApp = ObservingMiddleware(KeyMiddleware(table, app), app, ApiTable(routes))
    if settings.allow_origin:
        # Outermost: pages may read why they were refused, and preflight requests have no key.
        asgi = _Cors(
            asgi,
            allow_origins=settings.allow_origin,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=EXPOSED_HEADERS,
        )
    if settings.root_path:
        asgi = _RootPath(asgi, settings.root_path)
    if settings.trusted_proxy:
        asgi = ProxyHeadersMiddleware(asgi, [*settings.trusted_proxy])  # type: ignore[assignment,arg-type]
    return LeavingMiddleware(asgi)
