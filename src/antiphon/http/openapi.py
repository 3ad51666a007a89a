"""The OpenAPI 3.1 document: routes, with the types of requests and answers.

`OPERATIONS` has the types of each route; the description is the docstring of its handler. The page at /docs
shows the document (`page.py`).
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.routing import BaseRoute, Route

from antiphon import __version__
from antiphon.apis import llama_server
from antiphon.apis import vectors as wire
from antiphon.apis.api import OPENAI, Api
from antiphon.apis.batches import schema as files_of_requests
from antiphon.apis.chat import schema as chat
from antiphon.apis.chat import stored
from antiphon.apis.chat.resource import ChatCompletion
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.containers import schema as containers
from antiphon.apis.conversations import schema as conversations
from antiphon.apis.files import schema as files
from antiphon.apis.generate.resource import RenderedRequest
from antiphon.apis.messages import batch as batches
from antiphon.apis.messages import resource as message
from antiphon.apis.messages import schema as messages
from antiphon.apis.moderation import CreateModeration, Moderations
from antiphon.apis.ollama import resource as ollama
from antiphon.apis.ollama import schema as ollama_requests
from antiphon.apis.responses import resource as response
from antiphon.apis.responses import schema as responses
from antiphon.apis.responses import steering
from antiphon.apis.tokens import (
    Detokenized,
    DetokenizeRequest,
    TokenizeChatRequest,
    Tokenized,
    TokenizeTextRequest,
)
from antiphon.apis.vector_stores import schema as vectors
from antiphon.app import debug
from antiphon.http.models import (
    Catalogue,
    DrainReplica,
    LoadAdapter,
    ModelList,
    ReplicaList,
    ServerHealth,
    ShownModel,
    UnloadAdapter,
    Version,
)
from antiphon.http.routes import ApiRoute

JSON = "application/json"
PAGED = ("order", "limit", "after", "before")


class Operation(Struct, frozen=True):
    """One method of a route. `request` and `answer` are types of JSON bodies; None for another body, or none.

    A tuple of types means any of them. `events`: it may be a stream. `query` names the parameters of the
    URL. A `form` is a file, in the field of that name, with other fields.
    """

    request: Any = None
    answer: Any = None
    events: bool = False
    query: tuple[str, ...] = ()
    form: Any = None
    file: str = "file"
    media_type: str = JSON
    api: Api = OPENAI


_BATCHES = ("after_id", "before_id", "limit")
_TEXT = "text/plain"
_AUDIO = Operation(form=wire.TranscriptionForm, answer=dict[str, Any], events=True)
_ITEM = Annotated[
    dict[str, Any],
    Meta(
        description="An item: a message, reasoning, a call or its result. Its `type` says which.",
        extra_json_schema={"required": ["id", "type"], "properties": {"type": {"type": "string"}}},
    ),
]

# Blocks are a union that msgspec cannot describe: the results of tools have a type of their own each.
_BLOCKS = get_args(message.Block)
_BLOCK = Annotated[
    Any,
    Meta(
        extra_json_schema={"anyOf": [{"$ref": f"#/components/schemas/{block.__name__}"} for block in _BLOCKS]}
    ),
]
_MESSAGE = msgspec.defstruct(
    "Message",
    [
        (field.name, list[_BLOCK] if field.name == "content" else field.type)
        if field.required or field.name == "content"
        else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(message.Message)
    ],
    namespace={"__doc__": message.Message.__doc__},
    tag_field="type",
    tag="message",
    kw_only=True,
)


@cache
def _list_of(entry: Any, name: str) -> Any:
    """A page of a list of these."""
    ids = [(id_, str | None) for id_ in ("first_id", "last_id")]
    fields = [("data", list[entry]), *ids, ("has_more", bool)]
    doc = "A page of a list. Without entries it has no ids."
    return msgspec.defstruct(name, fields, namespace={"__doc__": doc}, tag_field="object", tag="list")


_STORE_FILES = Operation(
    answer=_list_of(vectors.VectorStoreFile, "VectorStoreFileList"), query=("filter", *PAGED)
)
_ITEMS = Operation(answer=_list_of(_ITEM, "ItemList"), query=PAGED)

_REFUSED = Operation(ollama_requests.ModelRequest, ollama.PullStatus)
"""What Ollama has, and is refused here."""

OPERATIONS: Mapping[str, Operation] = {
    "GET /v1/chat/completions": Operation(
        answer=_list_of(ChatCompletion, "ChatCompletionList"), query=("model", "metadata[KEY]", *PAGED)
    ),
    "POST /v1/chat/completions/render": Operation(chat.ChatRequest, RenderedRequest),
    "POST /v1/completions/render": Operation(CompletionRequest, list[RenderedRequest]),
    "POST /v1/responses/render": Operation(responses.CreateResponse, RenderedRequest),
    "POST /v1/messages/render": Operation(messages.CreateMessage, RenderedRequest),
    "POST /v1/chat/completions/batch": Operation(chat.BatchChatRequest, ChatCompletion),
    "GET /v1/chat/completions/{completion_id}": Operation(answer=ChatCompletion),
    "POST /v1/chat/completions/{completion_id}": Operation(stored.UpdateRequest, ChatCompletion),
    "DELETE /v1/chat/completions/{completion_id}": Operation(answer=stored.Deleted),
    "GET /v1/chat/completions/{completion_id}/messages": Operation(
        answer=_list_of(stored.StoredMessage, "StoredMessageList"), query=PAGED
    ),
    "POST /tokenize": Operation(
        (TokenizeTextRequest, TokenizeChatRequest, llama_server.TokenizeContentRequest),
        (Tokenized, llama_server.TokenizedContent),
    ),
    "POST /apply-template": Operation(llama_server.ApplyTemplateRequest, llama_server.AppliedTemplate),
    "GET /props": Operation(answer=llama_server.Props, query=("model",)),
    "GET /slots": Operation(answer=list[llama_server.Slot], query=("model", "fail_on_no_slot")),
    "POST /detokenize": Operation(DetokenizeRequest, Detokenized),
    "POST /v1/embeddings": Operation(wire.EmbeddingsRequest, wire.EmbeddingList),
    "POST /v1/rerank": Operation(wire.RerankRequest, wire.Ranking | list[wire.RankedText]),
    "POST /v2/rerank": Operation(wire.RerankRequest, wire.Ranking | list[wire.RankedText]),
    "POST /rerank": Operation(wire.RerankRequest, wire.Ranking | list[wire.RankedText]),
    "POST /v1/score": Operation(wire.ScoreRequest, wire.ScoreList),
    "POST /score": Operation(wire.ScoreRequest, wire.ScoreList),
    "POST /v1/moderations": Operation(CreateModeration, Moderations),
    "POST /v1/audio/transcriptions": _AUDIO,
    "POST /v1/audio/translations": _AUDIO,
    "POST /v1/responses": Operation(responses.CreateResponse, response.Response, events=True),
    "GET /v1/responses": Operation(
        answer=_list_of(response.ListedResponse, "ResponseList"), query=("background", *PAGED)
    ),
    "POST /v1/responses/input_tokens": Operation(responses.CountTokens, response.TokenCounts),
    "POST /v1/responses/compact": Operation(responses.CompactRequest, response.Compaction),
    "GET /v1/responses/{response_id}": Operation(
        answer=response.Response, events=True, query=("stream", "starting_after", "include_obfuscation")
    ),
    "DELETE /v1/responses/{response_id}": Operation(answer=response.DeletedResponse),
    "POST /v1/responses/{response_id}/cancel": Operation(answer=response.Response),
    "POST /v1/responses/{response_id}/steer": Operation(steering.SteerResponse, steering.Steer),
    "GET /v1/responses/{response_id}/input_items": _ITEMS,
    "POST /v1/conversations": Operation(conversations.CreateConversation, conversations.Conversation),
    "GET /v1/conversations/{conversation_id}": Operation(answer=conversations.Conversation),
    "POST /v1/conversations/{conversation_id}": Operation(
        conversations.UpdateConversation, conversations.Conversation
    ),
    "DELETE /v1/conversations/{conversation_id}": Operation(answer=conversations.DeletedConversation),
    "POST /v1/conversations/{conversation_id}/items": Operation(
        conversations.CreateItems, _list_of(_ITEM, "ItemList")
    ),
    "GET /v1/conversations/{conversation_id}/items": _ITEMS,
    "GET /v1/conversations/{conversation_id}/items/{item_id}": Operation(answer=_ITEM),
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": Operation(
        answer=conversations.Conversation
    ),
    "POST /v1/files": Operation(form=files.CreateFile, answer=files.File),
    "GET /v1/files": Operation(answer=_list_of(files.File, "FileList"), query=("purpose", *PAGED)),
    "GET /v1/files/{file_id}": Operation(answer=files.File),
    "DELETE /v1/files/{file_id}": Operation(answer=files.DeletedFile),
    "GET /v1/files/{file_id}/content": Operation(media_type="application/octet-stream"),
    "POST /v1/uploads": Operation(files.CreateUpload, files.Upload),
    "POST /v1/uploads/{upload_id}/parts": Operation(
        form=files.AddUploadPart, file="data", answer=files.UploadPart
    ),
    "POST /v1/uploads/{upload_id}/complete": Operation(files.CompleteUpload, files.Upload),
    "POST /v1/uploads/{upload_id}/cancel": Operation(answer=files.Upload),
    "POST /v1/containers": Operation(containers.CreateContainer, containers.Container),
    "GET /v1/containers": Operation(
        answer=_list_of(containers.Container, "ContainerList"), query=("name", *PAGED)
    ),
    "GET /v1/containers/{container_id}": Operation(answer=containers.Container),
    "DELETE /v1/containers/{container_id}": Operation(answer=containers.DeletedContainer),
    "POST /v1/containers/{container_id}/files": Operation(
        containers.CreateContainerFile, containers.ContainerFile
    ),
    "DELETE /v1/containers/{container_id}/files/{file_id}": Operation(answer=containers.DeletedContainerFile),
    "GET /v1/containers/{container_id}/files": Operation(
        answer=_list_of(containers.ContainerFile, "ContainerFileList"), query=PAGED
    ),
    "GET /v1/containers/{container_id}/files/{file_id}": Operation(answer=containers.ContainerFile),
    "GET /v1/containers/{container_id}/files/{file_id}/content": Operation(
        media_type="application/octet-stream"
    ),
    "POST /v1/vector_stores": Operation(vectors.CreateVectorStore, vectors.VectorStore),
    "GET /v1/vector_stores": Operation(answer=_list_of(vectors.VectorStore, "VectorStoreList"), query=PAGED),
    "GET /v1/vector_stores/{vector_store_id}": Operation(answer=vectors.VectorStore),
    "POST /v1/vector_stores/{vector_store_id}": Operation(vectors.UpdateVectorStore, vectors.VectorStore),
    "DELETE /v1/vector_stores/{vector_store_id}": Operation(answer=vectors.DeletedVectorStore),
    "POST /v1/vector_stores/{vector_store_id}/search": Operation(
        vectors.SearchRequest, vectors.SearchResults
    ),
    "POST /v1/vector_stores/{vector_store_id}/files": Operation(
        vectors.CreateVectorStoreFile, vectors.VectorStoreFile
    ),
    "GET /v1/vector_stores/{vector_store_id}/files": _STORE_FILES,
    "GET /v1/vector_stores/{vector_store_id}/files/{file_id}": Operation(answer=vectors.VectorStoreFile),
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": Operation(
        vectors.UpdateVectorStoreFile, vectors.VectorStoreFile
    ),
    "DELETE /v1/vector_stores/{vector_store_id}/files/{file_id}": Operation(
        answer=vectors.DeletedVectorStoreFile
    ),
    "GET /v1/vector_stores/{vector_store_id}/files/{file_id}/content": Operation(answer=vectors.FileContent),
    "POST /v1/vector_stores/{vector_store_id}/file_batches": Operation(
        vectors.CreateFileBatch, vectors.FileBatch
    ),
    "GET /v1/vector_stores/{vector_store_id}/file_batches/{batch_id}": Operation(answer=vectors.FileBatch),
    "POST /v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel": Operation(
        answer=vectors.FileBatch
    ),
    "GET /v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files": _STORE_FILES,
    "POST /v1/messages": Operation(answer=_MESSAGE),
    "POST /v1/messages/count_tokens": Operation(messages.CountTokens, message.TokenCount),
    "POST /v1/batches": Operation(files_of_requests.CreateBatch, files_of_requests.Batch),
    "GET /v1/batches": Operation(answer=_list_of(files_of_requests.Batch, "BatchList"), query=PAGED),
    "GET /v1/batches/{batch_id}": Operation(answer=files_of_requests.Batch),
    "POST /v1/batches/{batch_id}/cancel": Operation(answer=files_of_requests.Batch),
    "POST /v1/messages/batches": Operation(batches.CreateMessageBatch, batches.MessageBatch),
    "GET /v1/messages/batches": Operation(answer=batches.MessageBatchList, query=_BATCHES),
    "GET /v1/messages/batches/{batch_id}": Operation(answer=batches.MessageBatch),
    "DELETE /v1/messages/batches/{batch_id}": Operation(answer=batches.DeletedBatch),
    "POST /v1/messages/batches/{batch_id}/cancel": Operation(answer=batches.MessageBatch),
    "GET /v1/messages/batches/{batch_id}/results": Operation(media_type="application/x-jsonl"),
    "POST /api/embed": Operation(ollama_requests.EmbedRequest, ollama.EmbedBody),
    "POST /api/embeddings": Operation(ollama_requests.EmbeddingsRequest, ollama.EmbeddingBody),
    "GET /api/tags": Operation(answer=ollama.ModelList),
    "GET /api/ps": Operation(answer=ollama.LoadedModels),
    "POST /api/show": Operation(ollama_requests.ModelRequest, ollama.ShownModel),
    "GET /api/version": Operation(answer=ollama.Version),
    "POST /api/pull": Operation(ollama_requests.ModelRequest, ollama.PullStatus, events=True),
    "POST /api/push": _REFUSED,
    "POST /api/create": _REFUSED,
    "POST /api/copy": _REFUSED,
    "DELETE /api/delete": _REFUSED,
    "POST /api/blobs/{digest}": _REFUSED,
    "GET /v1/models": Operation(answer=(ModelList, Catalogue), query=("client_version", *_BATCHES)),
    "GET /v1/models/{model}": Operation(answer=ShownModel),
    "POST /v1/load_lora_adapter": Operation(LoadAdapter, media_type=_TEXT),
    "POST /v1/unload_lora_adapter": Operation(UnloadAdapter, media_type=_TEXT),
    "GET /v1/replicas": Operation(answer=ReplicaList),
    "POST /v1/replicas/drain": Operation(DrainReplica, ReplicaList),
    "POST /v1/replicas/resume": Operation(DrainReplica, ReplicaList),
    "GET /health": Operation(answer=ServerHealth),
    "GET /ready": Operation(answer=ServerHealth),
    "GET /metrics": Operation(media_type=_TEXT),
    "GET /version": Operation(answer=Version),
    "GET /openapi.json": Operation(answer=dict[str, Any]),
    "GET /docs": Operation(media_type="text/html"),
    "GET /": Operation(media_type="text/html"),
    "GET /page/{path}": Operation(media_type="application/octet-stream"),
    "GET /v1/debug": Operation(answer=debug.KeptAnswers),
    "GET /v1/debug/{answer_id}": Operation(answer=debug.ShownRecord),
    "GET /v1/status": Operation(answer=debug.ServerNow),
}
"""Types of the routes that have any, besides those of an `ApiRoute`.

The WebSocket of /v1/responses has no place in OpenAPI.
"""

_CONVERTOR = re.compile(r":\w+}")


def document(routes: Sequence[BaseRoute], root: str = "") -> dict[str, Any]:
    """The document of these routes."""
    described = [*_described(routes)]
    apis = {operation.api.name: operation.api for _, _, _, operation in described}.values()
    types = [type_ for _, _, _, operation in described for type_ in _types(operation)]
    types += [*(api.error_type for api in apis if api.error_type is not None), *_BLOCKS]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(map(repr, types), schemas, strict=True))
    errors = {_error_name(api): _error() if api is OPENAI else _schema(api.error_type, known) for api in apis}
    paths: dict[str, Any] = {}
    for path, method, summary, operation in described:
        paths.setdefault(path, {})[method.lower()] = _operation(path, method, summary, operation, known)
    key = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": __version__,
            "description": "OpenAI's, Anthropic's and Ollama's APIs, and some paths of vLLM, for any model.",
        },
        "servers": [{"url": root or "/"}],
        "security": [{"bearer": []}, {"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components | errors,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}, "key": key},
        },
    }


def _described(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str, str, Operation]]:
    """Path, method, summary and types of each operation."""
    for route in routes:
        if not isinstance(route, Route):
            continue
        path = _CONVERTOR.sub("}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = OPERATIONS.get(f"{method} {path}", Operation())
            if isinstance(route, ApiRoute):
                operation = replace(operation, api=route.api)
            if isinstance(route, ApiRoute) and (types := route.types) is not None:
                body = operation.answer or types.body
                operation = replace(operation, request=types.request, answer=body, events=True)
            yield path, method, _summary(route), operation


def _summary(route: Route) -> str:
    """The handler's description, without the errors that it raises."""
    text = (inspect.getdoc(route.endpoint) or "").partition("\n\n")[0]
    return " ".join(text.partition(" Raises ")[0].split())


def _types(operation: Operation) -> list[Any]:
    given = [operation.request, operation.form, operation.answer]
    listed = [type_ if isinstance(type_, tuple) else (type_,) for type_ in given]
    return [type_ for types in listed for type_ in types if type_ is not None]


def _schema(type_: Any, known: Mapping[str, Any]) -> Any:
    """The schema of a type, or of any of several."""
    if isinstance(type_, tuple):
        return {"anyOf": [known[repr(alternative)] for alternative in type_]}
    return {} if type_ is None else known[repr(type_)]


def _operation(
    path: str, method: str, summary: str, operation: Operation, known: Mapping[str, Any]
) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media_type: {"schema": _schema(operation.answer, known)}}
    if operation.events:
        events = operation.api.media_type.partition(b";")[0].decode()
        content[events] = {}  # OpenAPI 3.1 has no schema for the events of a stream
    description: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "summary": summary,
        "tags": [_tag(path)],
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"{(\w+)}", path)),
            *(_parameter(name, "query") for name in operation.query),
        ],
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {
                "description": "An error.",
                "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{_error_name(operation.api)}"}}},
            },
        },
    }
    if operation.request is not None:
        description["requestBody"] = _body(JSON, _schema(operation.request, known))
    if operation.form is not None:
        fields = {
            "allOf": [_schema(operation.form, known), {"properties": {operation.file: {"format": "binary"}}}]
        }
        description["requestBody"] = _body("multipart/form-data", fields)
    return description


def _tag(path: str) -> str:
    """The group that a path is shown in."""
    if path.startswith("/api/"):
        return "ollama"
    return path.split("/")[2] if path.startswith("/v1/") else "server"


def _body(media_type: str, schema: Any) -> dict[str, Any]:
    return {"required": True, "content": {media_type: {"schema": schema}}}


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _error_name(api: Api) -> str:
    return f"{api.name}Error"


def _error() -> dict[str, Any]:
    """The schema of OpenAI's errors; see `apis/errors.py`."""
    text = {"type": ["string", "null"]}
    fields = {"message": {"type": "string"}, "type": {"type": "string"}, "param": text, "code": text}
    shape = {"type": "object", "required": [*fields], "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": shape}}
