"""Requests made from the wire types of every endpoint, and spoiled: the same ones for the same seed."""

import json
from collections.abc import Mapping
from copy import deepcopy
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct, inspect
from starlette.routing import Route

from antiphon.apis.batches.schema import CreateBatch
from antiphon.apis.chat.schema import BatchChatRequest, ChatRequest
from antiphon.apis.chat.stored import UpdateRequest
from antiphon.apis.completions.infill import InfillRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.containers.schema import CreateContainer, CreateContainerFile
from antiphon.apis.conversations.schema import CreateConversation, CreateItems, UpdateConversation
from antiphon.apis.decisions.schema import CreateDecision
from antiphon.apis.files.schema import AddUploadPart, CompleteUpload, CreateFile, CreateUpload
from antiphon.apis.generate.schema import GenerateTokens
from antiphon.apis.llama_server import ApplyTemplateRequest, TokenizeContentRequest
from antiphon.apis.messages import schema as messages
from antiphon.apis.messages.batch import CreateMessageBatch
from antiphon.apis.moderation import CreateModeration
from antiphon.apis.ollama import schema as ollama
from antiphon.apis.responses.schema import CompactRequest, CountTokens, CreateResponse
from antiphon.apis.responses.steering import SteerResponse
from antiphon.apis.systemone.schema import SystemOneBody
from antiphon.apis.tokens import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from antiphon.apis.vector_stores import schema as vector_stores
from antiphon.apis.vectors import EmbeddingsRequest, RerankRequest, ScoreRequest, TranscriptionForm
from antiphon.http.app import ROUTES
from antiphon.http.models import DrainReplica, LoadAdapter, UnloadAdapter

ENDPOINTS: dict[str, tuple[type[Struct], ...]] = {
    "/v1/chat/completions": (ChatRequest,),
    "/v1/chat/completions/render": (ChatRequest,),
    "/v1/chat/completions/batch": (BatchChatRequest,),
    "/v1/chat/completions/chatcmpl-1": (UpdateRequest,),
    "/v1/completions": (CompletionRequest,),
    "/v1/completions/render": (CompletionRequest,),
    "/inference/v1/generate": (GenerateTokens,),
    "/infill": (InfillRequest,),
    "/tokenize": (TokenizeTextRequest, TokenizeChatRequest, TokenizeContentRequest),
    "/apply-template": (ApplyTemplateRequest,),
    "/detokenize": (DetokenizeRequest,),
    "/v1/responses": (CreateResponse,),
    "/v1/responses/input_tokens": (CountTokens,),
    "/v1/responses/compact": (CompactRequest,),
    "/v1/responses/render": (CreateResponse,),
    "/v1/responses/resp_1/steer": (SteerResponse,),
    "/v1/messages": (messages.CreateMessage,),
    "/v1/messages/render": (messages.CreateMessage,),
    "/v1/messages/count_tokens": (messages.CountTokens,),
    "/v1/messages/batches": (CreateMessageBatch,),
    "/v1/batches": (CreateBatch,),
    "/api/chat": (ollama.ChatRequest,),
    "/api/generate": (ollama.GenerateRequest,),
    "/api/embed": (ollama.EmbedRequest,),
    "/api/embeddings": (ollama.EmbeddingsRequest,),
    "/api/show": (ollama.ModelRequest,),
    "/api/pull": (ollama.ModelRequest,),
    "/api/push": (ollama.ModelRequest,),
    "/api/create": (ollama.ModelRequest,),
    "/api/copy": (ollama.ModelRequest,),
    "/v1/conversations": (CreateConversation,),
    "/v1/conversations/conv_1": (UpdateConversation,),
    "/v1/conversations/conv_1/items": (CreateItems,),
    "/v1/decisions": (CreateDecision,),
    "/v1/systemone": (SystemOneBody,),
    "/v1/embeddings": (EmbeddingsRequest,),
    "/v1/rerank": (RerankRequest,),
    "/v2/rerank": (RerankRequest,),
    "/rerank": (RerankRequest,),
    "/v1/score": (ScoreRequest,),
    "/score": (ScoreRequest,),
    "/v1/moderations": (CreateModeration,),
    "/v1/audio/transcriptions": (TranscriptionForm,),
    "/v1/audio/translations": (TranscriptionForm,),
    "/v1/files": (CreateFile,),
    "/v1/uploads": (CreateUpload,),
    "/v1/uploads/upload_1/parts": (AddUploadPart,),
    "/v1/uploads/upload_1/complete": (CompleteUpload,),
    "/v1/containers": (CreateContainer,),
    "/v1/containers/cntr_1/files": (CreateContainerFile,),
    "/v1/vector_stores": (vector_stores.CreateVectorStore,),
    "/v1/vector_stores/vs_1": (vector_stores.UpdateVectorStore,),
    "/v1/vector_stores/vs_1/search": (vector_stores.SearchRequest,),
    "/v1/vector_stores/vs_1/files": (vector_stores.CreateVectorStoreFile,),
    "/v1/vector_stores/vs_1/files/file_1": (vector_stores.UpdateVectorStoreFile,),
    "/v1/vector_stores/vs_1/file_batches": (vector_stores.CreateFileBatch,),
    "/v1/load_lora_adapter": (LoadAdapter,),
    "/v1/replicas/drain": (DrainReplica,),
    "/v1/replicas/resume": (DrainReplica,),
    "/v1/unload_lora_adapter": (UnloadAdapter,),
}
"""Every endpoint that takes a body, with the types that it may have."""

IDS = {
    "conv_1": "conversation_id",
    "chatcmpl-1": "completion_id",
    "cntr_1": "container_id",
    "vs_1": "vector_store_id",
    "file_1": "file_id",
    "upload_1": "upload_id",
    "resp_1": "response_id",
}
"""The ids in paths."""
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
MADE = {
    "conv_1": ("/v1/conversations", {}),
    "chatcmpl-1": ("/v1/chat/completions", {**HELLO, "store": True}),
    "vs_1": ("/v1/vector_stores", {}),
    "resp_1": ("/v1/responses", {"model": "scripted", "input": "Hi"}),
    "upload_1": (
        "/v1/uploads",
        {"filename": "a", "purpose": "user_data", "bytes": 3, "mime_type": "text/plain"},
    ),
}
"""What is there to be asked for, so that not everything is refused as unknown: how it is made."""
FORMS = (
    "/v1/files",
    "/v1/containers/cntr_1/files",
    "/v1/audio/transcriptions",
    "/v1/uploads/upload_1/parts",
)
READ = [
    route.path
    for route in ROUTES
    if isinstance(route, Route) and "GET" in (route.methods or ()) and route.path.startswith("/v1/")
]
QUERIES = ("limit", "order", "after", "before", "include", "include[]", "purpose", "filter", "name", "model")
QUERIES += ("stream", "starting_after", "include_obfuscation", "metadata[a]", "metadata[", "\ud800")

TEXTS = ["", "a", "Hi", "\0", "\ud800", "\u202e", "\U0001d4b3" * 3, "e\u0301", "<|im_end|>"]
TEXTS += ["user", "assistant", "auto", "x" * 3000]
NUMBERS = [
    0,
    -1,
    1,
    2,
    0.5,
    -0.0,
    1e308,
    1e-320,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**40,
    float("inf"),
    float("nan"),
]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
ANYTHING: list[Any] = [
    {"type": "message", "role": "user", "content": "Hi"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "1"},
    {"type": "reasoning", "summary": []},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
    {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    {"type": "json_schema", "name": "n", "schema": SCHEMA},
    {"type": "mcp", "server_label": "a", "server_url": "http://127.0.0.1:1/mcp", "require_approval": "never"},
    {"type": "mcp_list_tools", "server_label": "a", "tools": [{"name": "f", "input_schema": SCHEMA}]},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "a", "name": "f", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "a", "name": "f", "arguments": "{}", "output": "1"},
    {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": {"type": "eq", "key": "a", "value": 1}},
    {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}},
    {"type": "web_search", "filters": {"allowed_domains": ["a.example"]}},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    {"type": "input_file", "file_id": "file_1"},
    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "1"}]},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hi"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    {"type": "thinking", "thinking": "Well", "signature": "x"},
    {"function": {"name": "f", "arguments": {}}},
    {"required": True, "prefixItems": True, "enum": 1, "$ref": "#"},
]
"""Values that the wire types do not describe: items, tools, formats, and an invalid schema."""


class Case(Struct, frozen=True):
    """A request."""

    path: str
    body: bytes = b""
    method: str = "POST"
    content_type: str = "application/json"


class Cases:
    """Makes requests. What the paths call `conv_1` and the like has these ids."""

    def __init__(self, seed: int, ids: Mapping[str, str]) -> None:
        self._rng = Random(seed)
        self._ids = ids

    def case(self) -> Case:
        """A request."""
        rng = self._rng
        match rng.randrange(12):
            case 0:
                return self._reading()
            case 1:
                return self._form()
        path = rng.choice([*ENDPOINTS])
        return Case(self._named(path), self.body(rng.choice(ENDPOINTS[path])))

    def _named(self, path: str) -> str:
        for name, id_ in self._ids.items():
            path = path.replace(name, id_)
        return path

    def _reading(self) -> Case:
        """One for what is there, with parameters in its URL."""
        rng, path = self._rng, self._rng.choice(READ)
        for name, field in IDS.items():
            known = rng.random() < 0.8
            path = path.replace(f"{{{field}}}", name if known else self._quoted(rng.choice(TEXTS[1:-1])))
        values = [*TEXTS, *map(str, NUMBERS), "true", "desc", *self._ids.values()]
        query = {rng.choice(QUERIES): rng.choice(values) for _ in range(rng.choice((0, 1, 2, 4)))}
        return Case(f"{self._named(path)}?{urlencode(query, errors='surrogatepass')}", method="GET")

    @staticmethod
    def _quoted(text: str) -> str:
        return quote(text, safe="", errors="surrogatepass")

    def _form(self) -> Case:
        """A form with a file, with its required fields, or not."""
        rng, edge = self._rng, "edge"
        lines = []
        for _ in range(rng.choice((0, 1, 2, 3, 120))):
            name = rng.choice(("purpose", "file", "expires_after[anchor]", "expires_after[seconds]", "x"))
            value = rng.choice((*TEXTS, "user_data", "assistants", "created_at", "3600"))
            lines.append(f'--{edge}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n')
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            name = rng.choice(("a.txt", "", "../a", "\u202ea", "x" * 3000))
            head = f'content-disposition: form-data; name="file"; filename="{name}"'
            lines.insert(rng.randrange(len(lines) + 1), f"--{edge}\r\n{head}\r\n\r\n{rng.choice(TEXTS)}\r\n")
        data = ("".join(lines) + f"--{edge}--\r\n").encode(errors="surrogatepass")
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data) + 1)]
        said = rng.choice((edge, edge, edge, "", "other"))
        content_type = f"multipart/form-data; boundary={said}"
        return Case(self._named(rng.choice(FORMS)), data, content_type=content_type)

    def body(self, type_: type[Struct]) -> bytes:
        """A body of the type, or what is left of one."""
        rng = self._rng
        body = self._value(inspect.type_info(type_), 0)
        body["model"] = "scripted"
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            self._spoil(body)
        data = json.dumps(body).encode()
        match rng.randrange(12):
            case 0:
                data = data[: rng.randrange(len(data) + 1)]
            case 1:
                data = rng.choice((b"\xff", b"[", b"\xef\xbb\xbf", b"0", b" \n")) + data
            case 2:
                data += rng.choice((b"\0", b"}", b"{}", b" "))
            case 3:
                at = rng.randrange(len(data))
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        return data

    def _value(self, type_: inspect.Type, depth: int) -> Any:  # noqa: PLR0911 - one for each kind
        """A value of this type, as far as it says."""
        rng = self._rng
        match type_:
            case inspect.UnionType(types=types):
                return self._value(rng.choice(types), depth)
            case inspect.StructType():
                return self._struct(type_, depth)
            case inspect.ListType(item_type=inner):
                return [self._value(inner, depth + 1) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            case inspect.DictType(value_type=inner):
                return {
                    rng.choice(TEXTS): self._value(inner, depth + 1) for _ in range(rng.choice((0, 1, 2)))
                }
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.StrType():
                return rng.choice(TEXTS)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.IntType() | inspect.FloatType():
                return rng.choice((0, 1, 1, 2, 5))
            case inspect.NoneType():
                return None
        return deepcopy(rng.choice((None, *ANYTHING, [rng.choice(ANYTHING)], rng.choice(TEXTS))))

    def _struct(self, type_: inspect.StructType, depth: int) -> dict[str, Any]:
        chance = 0.12 if len(type_.fields) > 12 else 0.6
        found = {
            field.encode_name: self._value(field.type, depth + 1)
            for field in type_.fields
            if field.required or (depth < 6 and self._rng.random() < chance)
        }
        return found if type_.tag_field is None else {**found, type_.tag_field: type_.tag}

    def _spoil(self, body: Any) -> None:
        """Change something somewhere in a body."""
        rng, place = self._rng, body
        while isinstance(place, dict | list) and place:
            key = rng.choice([*place]) if isinstance(place, dict) else rng.randrange(len(place))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
                place = inner
                continue
            match rng.randrange(4):
                case 0:
                    del place[key]
                case 1 if isinstance(place, dict):
                    place[rng.choice(TEXTS)] = self._odd()
                case _:
                    place[key] = self._odd()
            return

    def _odd(self) -> Any:
        rng = self._rng
        nested: Any = rng.choice((1, "a", 2**63))
        for _ in range(rng.choice((1, 5, 90, 600))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return rng.choice(
            (
                None,
                True,
                rng.choice(TEXTS),
                rng.choice(NUMBERS),
                [],
                {},
                nested,
                deepcopy(rng.choice(ANYTHING)),
                [[[]]],
                [None],
            )
        )


def cases(seed: int, number: int, ids: Mapping[str, str]) -> list[Case]:
    """A number of requests; `ids` are those of existing objects, see `MADE`."""
    made = Cases(seed, ids)
    return [made.case() for _ in range(number)]
