"""Bodies made from the wire types of every endpoint, and spoiled: the same ones for the same seed."""

import json
from copy import deepcopy
from random import Random
from typing import Any

from msgspec import Struct, inspect

from antiphon.apis.chat.schema import BatchRequest, ChatRequest
from antiphon.apis.chat.stored import UpdateRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.containers.schema import CreateContainer, CreateContainerFile
from antiphon.apis.conversations.schema import CreateConversation, CreateItems, UpdateConversation
from antiphon.apis.files.schema import CreateFile
from antiphon.apis.messages import schema as messages
from antiphon.apis.messages.batch import CreateBatch
from antiphon.apis.responses.schema import CompactRequest, CountTokens, CreateResponse
from antiphon.apis.tokens import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from antiphon.apis.vector_stores import schema as vector_stores
from antiphon.apis.vectors import EmbeddingsRequest, RerankRequest, ScoreRequest
from antiphon.http.models import LoadAdapter, UnloadAdapter

ENDPOINTS: dict[str, tuple[type[Struct], ...]] = {
    "/v1/chat/completions": (ChatRequest,),
    "/v1/chat/completions/render": (ChatRequest,),
    "/v1/chat/completions/batch": (BatchRequest,),
    "/v1/chat/completions/chatcmpl-1": (UpdateRequest,),
    "/v1/completions": (CompletionRequest,),
    "/tokenize": (TokenizeTextRequest, TokenizeChatRequest),
    "/detokenize": (DetokenizeRequest,),
    "/v1/responses": (CreateResponse,),
    "/v1/responses/input_tokens": (CountTokens,),
    "/v1/responses/compact": (CompactRequest,),
    "/v1/messages": (messages.CreateMessage,),
    "/v1/messages/count_tokens": (messages.CountTokens,),
    "/v1/messages/batches": (CreateBatch,),
    "/v1/conversations": (CreateConversation,),
    "/v1/conversations/conv_1": (UpdateConversation,),
    "/v1/conversations/conv_1/items": (CreateItems,),
    "/v1/embeddings": (EmbeddingsRequest,),
    "/v1/rerank": (RerankRequest,),
    "/v2/rerank": (RerankRequest,),
    "/rerank": (RerankRequest,),
    "/v1/score": (ScoreRequest,),
    "/score": (ScoreRequest,),
    "/v1/files": (CreateFile,),
    "/v1/containers": (CreateContainer,),
    "/v1/containers/cntr_1/files": (CreateContainerFile,),
    "/v1/vector_stores": (vector_stores.CreateVectorStore,),
    "/v1/vector_stores/vs_1": (vector_stores.UpdateVectorStore,),
    "/v1/vector_stores/vs_1/search": (vector_stores.Search,),
    "/v1/vector_stores/vs_1/files": (vector_stores.CreateVectorStoreFile,),
    "/v1/vector_stores/vs_1/files/file_1": (vector_stores.UpdateVectorStoreFile,),
    "/v1/vector_stores/vs_1/file_batches": (vector_stores.CreateBatch,),
    "/v1/load_lora_adapter": (LoadAdapter,),
    "/v1/unload_lora_adapter": (UnloadAdapter,),
}
"""Every endpoint that takes a body, with the types that it may have."""

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
    {"required": True, "prefixItems": True, "enum": 1, "$ref": "#"},
]
"""What stands where the wire types say nothing: items, tools, formats, and a schema that is none."""


class Cases:
    """Makes bodies."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

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


def cases(seed: int, number: int) -> list[tuple[str, bytes]]:
    """So many bodies, with the paths that they are sent to."""
    made, rng = Cases(seed), Random(seed)
    paths = [*ENDPOINTS]
    return [(path, made.body(rng.choice(ENDPOINTS[path]))) for path in rng.choices(paths, k=number)]
