"""Prompts as tokens: /tokenize, /detokenize and /v1/chat/completions/render, in vLLM's shapes."""

from collections.abc import Callable

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.chat.accept import House, accept
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.request import Count
from antiphon.apis.wire import decode
from antiphon.core.turn import Turn


class TokenizeTextRequest(Struct):
    """POST /tokenize of a text."""

    model: str
    prompt: str
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatRequest, kw_only=True):
    """POST /tokenize of a conversation."""

    return_token_strs: bool | None = None


class Tokenized(Struct):
    """The tokens of a prompt. `token_strs` are there if they were asked for."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | UnsetType | None = None


class DetokenizeRequest(Struct):
    """POST /detokenize."""

    model: str
    tokens: list[Count]


class Detokenized(Struct):
    """The text of tokens."""

    prompt: str


class Rendered(Struct, tag_field="object", tag="chat.completion.render"):
    """A conversation as the model reads it."""

    model: str
    prompt: str
    token_ids: tuple[int, ...]
    count: int
    max_model_len: int


class _Which(Struct):
    """Tells the two requests of /tokenize apart."""

    messages: Raw | UnsetType = UNSET


def accept_tokenize(body: bytes, owner: str, house: Callable[[str], House]) -> tuple[Turn, bool]:
    """The turn whose prompt is asked for, and whether with the texts of its tokens. Raises RequestError.

    `house` tells what the server brings to a request for a model.
    """
    if decode(body, _Which).messages is UNSET:
        text = decode(body, TokenizeTextRequest)
        return Turn(text.model, prompt=text.prompt, owner=owner, source="prompt"), bool(
            text.return_token_strs
        )
    chat = decode(body, TokenizeChatRequest)
    return accept(chat, owner, house(chat.model)).turn, bool(chat.return_token_strs)
