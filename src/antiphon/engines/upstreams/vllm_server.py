"""vLLM's server: tokens in both directions at `/v1/completions`, and with images at `/inference/v1/generate`.

The second endpoint exists if vLLM was started with `--enable-scale-out`. It takes tokens with a placeholder
for each image, and the images separately: as data, because vLLM would fetch URLs. Its first event has the
tokens of the prompt. Unlike `/v1/completions`, it does not apply the sampling parameters that the model's
makers recommend, so these are requested once, and sent with each prompt.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Candidate, Chunk, PromptToken, TokenId
from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind
from antiphon.engines.engine import GenerationRequest, ModelCard
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.upstreams.chat import Logprobs, scored_tokens
from antiphon.engines.upstreams.completions import (
    VLLM,
    CompletionsReader,
    CompletionsServer,
    adapter_field,
    is_owned_by,
    listed_adapters,
    listed_model,
    read_model,
)
from antiphon.engines.upstreams.kind import Answers, Post, UpstreamSettings, unreachable
from antiphon.engines.upstreams.tokenizers import ServerTokenizer, Tokenizer

GENERATE = "/inference/v1/generate"
RENDER = "/v1/chat/completions/render"

REMEDY = (
    "If the model takes images: start vLLM with --enable-scale-out, or Antiphon with --upstream-kind chat."
)

PROBE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAEklEQVR42mMIhQKGUcYog3QGAE1xqgEfgS6gAAAA"
    "AElFTkSuQmCC"
)
"""An image of 64 by 64 pixels: a model that takes no images refuses it."""

_RECOMMENDED = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
"""Sampling parameters that the makers of models recommend."""


class VllmServer(CompletionsServer):
    """vLLM, and its model `name`. `defaults` are sent with images, unless the request sets the field."""

    def __init__(
        self, name: str, card: ModelCard, slots: int, tokenizer: Tokenizer, defaults: Mapping[str, Any]
    ) -> None:
        super().__init__(VLLM, name, card, slots, tokenizer)
        self._name = name
        self._defaults = defaults

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        if not request.prompt.media:
            return super().encode_request(request)
        if request.sampling.kv_transfer_params:
            _check_text(request, "kv_transfer_params")
        params = {**self._defaults, **self._request_fields(request)}
        if (extra_args := params.pop("vllm_xargs", None)) is not None:
            params["extra_args"] = extra_args
        body = {
            "model": self._name,
            **adapter_field(request),
            "token_ids": request.prompt.ids,
            "content_parts": [
                {
                    "type": "image_url",
                    "url": f"data:{part.media_type};base64,{b64encode(part.data).decode()}",
                }
                for part in request.prompt.media
            ],
            "cache_salt": params.pop("cache_salt", None),
            "sampling_params": params,
            "reasoning_ended": request.constraint is not None or None,  # it holds from the first token on
            "output_mode": "text",
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return GENERATE, msgspec.json.encode(body)

    def reader(self, request: GenerationRequest) -> CompletionsReader:
        if not request.prompt.media:
            return super().reader(request)
        return _ImageReader(request, self._decode)

    async def score_prompt(self, post: Post, request: GenerationRequest) -> tuple[PromptToken, ...]:
        _check_text(request, "prompt_logprobs")
        return await super().score_prompt(post, request)

    async def search(self, post: Post, request: GenerationRequest) -> list[list[Chunk]]:
        _check_text(request, "use_beam_search")
        return await super().search(post, request)


def _check_text(request: GenerationRequest, param: str) -> None:
    """Raise RequestError for features that need prompts of text only."""
    if request.prompt.media:
        raise RequestError("vLLM does not do this with images in the prompt. Leave it out.", param=param)


class _VllmChoice(Struct, frozen=True):
    index: Any = 0
    text: str | None = ""
    token_ids: tuple[TokenId, ...] | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: Logprobs | None = None


class _VllmEvent(Struct, frozen=True):
    choices: tuple[_VllmChoice, ...] | None = ()
    usage: Any = None
    error: Any = None
    prompt_token_ids: tuple[TokenId, ...] | None = None


_decode = msgspec.json.Decoder(_VllmEvent).decode


class _ImageReader(CompletionsReader):
    """Reads the events of `GENERATE`.

    The first chunk has the number of tokens of the images. Alternatives to tokens have no ids there.
    """

    def __init__(self, request: GenerationRequest, text: Callable[[tuple[int, ...]], str]) -> None:
        super().__init__(request, text, counted=False, decode=self._decoded)
        self._sent = len(request.prompt.ids)
        self._media = 0  # tokens not yet reported

    def _decoded(self, data: bytes) -> _VllmEvent:
        event = _decode(data)
        if event.prompt_token_ids is not None:
            self._media = len(event.prompt_token_ids) - self._sent
        return event

    def read(self, line: bytes) -> Chunk | None:
        return self._with_media_tokens(super().read(line))

    def end(self) -> Chunk | None:
        return self._with_media_tokens(super().end())

    def _with_media_tokens(self, chunk: Chunk | None) -> Chunk | None:
        if chunk is None or not self._media:
            return chunk
        tokens, self._media = self._media, 0
        return replace(chunk, media_tokens=tokens)

    def _scores(self, scores: Logprobs) -> Sequence[tuple[float | None, tuple[Candidate, ...]]]:
        return [
            (scored.logprob, scored.top[: self._candidate_count or 0]) for scored in scored_tokens(scores)
        ]


async def recognise(client: HttpClient, answers: Answers, settings: UpstreamSettings) -> VllmServer | None:
    """The server, if it is vLLM."""
    model = listed_model(answers, settings)
    if model is None or not (settings.kind or is_owned_by(model, VLLM.name)):
        return None
    card, slots, tokenizer = await read_model(
        VLLM, model, answers, settings, ServerTokenizer(client, model["id"])
    )
    media, remedy, defaults = await _images(client, model["id"])
    capabilities = replace(card.capabilities, media=media, media_remedy=remedy)
    card = replace(card, capabilities=capabilities, adapters=listed_adapters(answers, model))
    return VllmServer(model["id"], card, slots, tokenizer, defaults)


async def _images(client: HttpClient, name: str) -> tuple[frozenset[MediaKind], str, Mapping[str, Any]]:
    """The media that the model takes; if none can be sent, the remedy; recommended sampling parameters."""
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PROBE}}]}
    try:
        response = await client.request("POST", RENDER, {"model": name, "messages": [message]})
    except HttpError as error:
        raise unreachable(error) from error
    if response.status in (403, 404, 405):
        return frozenset(), REMEDY, {}
    answer = response.json() if response.status == 200 else None
    if not isinstance(answer, dict) or not answer.get("features"):
        return frozenset(), "", {}
    params: Mapping[str, Any] = answer["sampling_params"]
    return frozenset({MediaKind.IMAGE}), "", {key: params[key] for key in _RECOMMENDED if key in params}
