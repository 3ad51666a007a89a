"""Ollama: its `/api/generate` takes an unchanged prompt, with `raw`.

Its OpenAI-like endpoints put every prompt into Ollama's own template, so they cannot be used. It takes and
returns text, with log probabilities, and images with text. Its template is not Jinja: that of the model has
to be configured. What versions take was read in its api/types.go, and since when, in its releases: older ones
ignore it.
"""

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token, TokenCount
from antiphon.core.constraint import WholeSchema
from antiphon.core.errors import EngineError
from antiphon.core.items import MediaKind
from antiphon.engines.engine import WORD_JOINER, Capabilities, GenerationRequest, ModelCard, Prompt
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.models import tokenizer_folder
from antiphon.engines.samplers import fields_of, supported
from antiphon.engines.upstreams.chat import Logprobs, Scored, scored_tokens
from antiphon.engines.upstreams.completions import spread
from antiphon.engines.upstreams.kind import (
    EVENT,
    Answers,
    UpstreamSettings,
    ask,
    refusal,
    texts_around_media,
    unreachable,
)
from antiphon.engines.upstreams.tokenizers import EstimatedTokens, Tokenizer, local_tokenizer, model_metadata

NAME = "ollama"

DEFAULT_CONTEXT = 8192
"""Tokens, if the model was trained for that many: memory grows with them."""

DEFAULT_SLOTS = 256
"""Requests at a time: it has a queue of its own, whose waiting requests can be cancelled."""

COLUMN = "ollama"
"""Its place in the table of samplers."""

_MARK = "[img-"
"""How the mark of an image begins, which its number follows."""

SINCE: Mapping[str, tuple[int, ...]] = {
    "logprobs": (0, 12, 11),
    "typical_p": (0, 30),
    "repeat_last_n": (0, 30),
}
"""The versions that certain fields came with."""

SCHEMAS_SINCE = (0, 5)
"""The version that took a JSON Schema as `format`."""

_RAW_PROMPT = {"raw": True, "think": False, "truncate": False, "shift": False}
"""Without these Ollama would put the prompt into its own template, remove reasoning from the text, cut a
long prompt silently, and drop the oldest tokens when the context is full."""


class _Piece(Struct, frozen=True):
    response: str = ""
    done: bool = False
    done_reason: str = "stop"
    eval_count: TokenCount = 0
    prompt_eval_count: TokenCount = 0
    logprobs: list[Scored] | None = None
    error: str | None = None


_decode = msgspec.json.Decoder(_Piece).decode


class OllamaServer:
    """An Ollama, and its model `name`."""

    kind = NAME
    path = "/api/generate"

    def __init__(self, name: str, card: ModelCard, slots: int, tokenizer: Tokenizer) -> None:
        self.card = card
        self.slots = slots
        self._name = name
        self._tokenizer = tokenizer

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return await self._tokenizer.tokenize(pieces)

    async def detokenize(self, ids: Sequence[int]) -> str:
        return await self._tokenizer.detokenize(ids)

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        """The size of the context is sent, because Ollama's default is small."""
        options = {"num_predict": request.max_tokens, "num_ctx": self.card.context}
        body = {"model": self._name, **self._prompt(request.prompt), **_RAW_PROMPT, "stream": True}
        if (count := request.sampling.logprobs) is not None:
            body |= {"logprobs": True, "top_logprobs": count}
        if isinstance(request.constraint, WholeSchema):
            body["format"] = request.constraint.schema
        return self.path, msgspec.json.encode(body | {"options": options | fields_of(request, COLUMN)})

    def _prompt(self, prompt: Prompt) -> Mapping[str, Any]:
        """The prompt, with the server's marks in the places of images. Text of a client cannot be one."""
        if not prompt.media:
            return {"prompt": prompt.text}
        texts = texts_around_media(prompt, self.card)
        first, *rest = (text.replace(_MARK, _MARK[0] + WORD_JOINER + _MARK[1:]) for text in texts)
        text = first + "".join(f"{_MARK}{number}]{text}" for number, text in enumerate(rest))
        return {"prompt": text, "images": [b64encode(part.data).decode() for part in prompt.media]}

    def reader(self, request: GenerationRequest) -> "_Reader":
        return _Reader(len(request.prompt.ids) if request.prompt.media else None)


class _Reader:
    """Reads a stream whose lines are JSON.

    Its end has the number of tokens of the prompt: those that are more than `text_tokens` are of images.
    """

    complete = ended = False
    line_limit = EVENT

    def __init__(self, text_tokens: int | None) -> None:
        self._text_tokens = text_tokens

    def read(self, line: bytes) -> Chunk | None:
        if not line:
            return None
        piece = _decode(line)
        if piece.error is not None:
            raise refusal(500, line)
        if not piece.done:
            return Chunk(piece.response, _tokens_of(piece)) if piece.response or piece.logprobs else None
        self.complete = True
        reason = FinishReason.LENGTH if piece.done_reason == "length" else FinishReason.STOP
        finish = Finish(reason, completion_tokens=piece.eval_count)
        media = 0 if self._text_tokens is None else max(piece.prompt_eval_count - self._text_tokens, 0)
        return Chunk(piece.response, _tokens_of(piece), finish, media_tokens=media)

    def end(self) -> Chunk | None:
        return None


def _tokens_of(piece: _Piece) -> tuple[Token, ...]:
    """The tokens of a text, without ids."""
    tokens = scored_tokens(Logprobs(piece.logprobs))
    parts = spread(piece.response, [token.text for token in tokens])
    return tuple(
        token if part == text else replace(token, text=part, raw=token.raw or text.encode())
        for token, (part, text) in zip(tokens, parts, strict=True)
    )


async def _version(client: HttpClient) -> tuple[int, ...]:
    """The numbers of its version; those of a build that has none are 0."""
    try:
        response = await client.request("GET", "/api/version")
    except HttpError as error:
        raise unreachable(error) from error
    told = response.json() if response.status == 200 else {}
    return tuple(int(number) for number in re.findall(r"[0-9]{1,9}", str(told.get("version")))[:3])


async def recognise(client: HttpClient, answers: Answers, settings: UpstreamSettings) -> OllamaServer | None:
    """The server, if it is Ollama."""
    listed = answers.get("/api/tags")
    if not isinstance(listed, dict) or "models" not in listed:
        return None
    names = [entry["name"] for entry in listed["models"]]
    name = settings.model or next(iter(names), None)
    if name is None:
        raise EngineError("This Ollama has no model. Get one with `ollama pull`.")
    if name not in names and f"{name}:latest" in names:
        name = f"{name}:latest"
    if name not in names:
        raise EngineError(f"The server has no model '{name}'. It has {', '.join(names)}.")
    shown = await ask(client, "/api/show", {"model": name})
    facts = shown.get("model_info") or {}
    images = "vision" in (shown.get("capabilities") or ())
    family = str(facts.get("general.architecture", ""))
    version = await _version(client)
    missing = {field for field, since in SINCE.items() if version < since}
    folder = await asyncio.to_thread(tokenizer_folder, settings.tokenizer) if settings.tokenizer else None
    tokenizer = EstimatedTokens() if folder is None else local_tokenizer(folder)
    metadata = await asyncio.to_thread(model_metadata, {}, (), folder)
    card = ModelCard(
        name=name,
        context=settings.context
        or min(facts.get(f"{family}.context_length", DEFAULT_CONTEXT), DEFAULT_CONTEXT),
        chat_template=metadata.chat_template,
        conversation_template=tokenizer.conversation_template,
        eos=metadata.eos,
        created=int(time.time()),
        known_as=(name, family),
        response_template=metadata.response_template,
        special_tokens=metadata.special_tokens | tokenizer.special | {metadata.bos},
        capabilities=Capabilities(
            text_prompts=True,
            sampling=supported(COLUMN) - missing,
            constraints=(WholeSchema,) if version >= SCHEMAS_SINCE else (),
            media=frozenset({MediaKind.IMAGE} if images else ()),
            media_remedy="" if images else "Choose a model of which Ollama shows the capability 'vision'.",
        ),
    )
    return OllamaServer(name, card, settings.parallel or DEFAULT_SLOTS, tokenizer)
