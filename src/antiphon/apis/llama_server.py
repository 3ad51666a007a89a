"""What llama-server tells beside its answers: /props, /slots, /apply-template, and its form of /tokenize.

Names and meanings are those of llama-server's documentation. Its clients name no model: the default one is
meant.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.apis.chat.schema import ChatRequest
from antiphon.core.errors import RequestError

MAX_SLOTS = 1024
"""The most slots that are listed."""


class ApplyTemplateRequest(ChatRequest, kw_only=True):
    """POST /apply-template: the parameters of Chat Completions."""

    model: str = ""


class AppliedTemplate(Struct):
    """The prompt that a conversation gives."""

    prompt: str


class TokenizeContentRequest(Struct, kw_only=True):
    """POST /tokenize of a `content`.

    With `add_special` the token that a prompt has to begin with is there. Special tokens in the text are
    always read as such. `with_pieces` shows the text of each token.
    """

    model: str = ""
    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenPiece(Struct):
    """A token, and its text, as far as it is whole characters."""

    id: int
    piece: str


class TokenizedContent(Struct):
    """The tokens of a text."""

    tokens: list[int | TokenPiece]


class Modalities(Struct):
    """The media that a model takes."""

    vision: bool
    audio: bool
    video: bool


class GenerationSettings(Struct):
    """The context of each slot in tokens, and the defaults of sampling."""

    n_ctx: int
    params: Mapping[str, Any]


class Props(Struct):
    """The body of /props. The file of a model is not told, so its path is its name."""

    default_generation_settings: GenerationSettings
    total_slots: int
    model_alias: str
    model_path: str
    modalities: Modalities
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str


class Slot(Struct):
    """A place for an answer."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool = False


def slots(count: int, running: int, context: int) -> Iterator[Slot]:
    """The slots of a model, of which the first are busy."""
    for number in range(min(count, MAX_SLOTS)):
        yield Slot(number, context, number < running)


def check(request: TokenizeContentRequest) -> None:
    """Raise RequestError for what no engine here does."""
    if request.parse_special is False:
        message = "Special tokens are always read as such. Leave 'parse_special' out."
        raise RequestError(message, param="parse_special")
