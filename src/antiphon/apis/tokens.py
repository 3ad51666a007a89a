"""Prompts as tokens: /tokenize and /detokenize, in vLLM's shapes.

A text that is called `content` is llama-server's.
"""

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.llama_server import TokenizeContentRequest
from antiphon.apis.request import Count
from antiphon.apis.wire import decode


class TokenizeTextRequest(Struct):
    """POST /tokenize of a text."""

    model: str
    prompt: str
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatRequest, kw_only=True):
    """POST /tokenize of a conversation."""

    return_token_strs: bool | None = None


class Tokenized(Struct):
    """The tokens of a prompt. `token_strs` are there if they were requested."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | UnsetType | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize. Clients of llama-server name no model."""

    model: str = ""
    tokens: list[Count]


class Detokenized(Struct):
    """The text of tokens, by the names of vLLM and llama-server."""

    prompt: str
    content: str


class _RequestType(Struct):
    """Distinguishes the requests of /tokenize."""

    messages: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET


TokenizeType = type[TokenizeTextRequest] | type[TokenizeChatRequest] | type[TokenizeContentRequest]


def tokenize_type(body: bytes) -> TokenizeType:
    """The type of a request to /tokenize. Raises RequestError."""
    given = decode(body, _RequestType)
    if given.messages is not UNSET:
        return TokenizeChatRequest
    return TokenizeTextRequest if given.content is UNSET else TokenizeContentRequest
