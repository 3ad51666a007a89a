"""vLLM's server: tokens in both directions at `/v1/completions`, and with images at `/inference/v1/generate`.

The second endpoint exists if vLLM was started with `--enable-scale-out`. It takes tokens with a placeholder
for each image, and the images separately: as data, because vLLM would fetch URLs. Its first event has the
tokens of the prompt. Unlike `/v1/completions`, it does not apply the sampling parameters that the model's
makers recommend, so these are requested once, and sent with each prompt.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Candidate, Chunk, PromptToken, TokenId
from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, ModelCard, NextToken, NextTokenRequest, Prompt
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.next_token import chosen, read_each
from antiphon.engines.upstreams.chat import Logprobs, scored_tokens
from antiphon.engines.upstreams.completions import (
    VLLM,
    CompletionsReader,
    CompletionsServer,
    CompletionUsage,
    adapter_field,
    is_owned_by,
    listed_adapters,
    listed_model,
    read_model,
)
from antiphon.engines.upstreams.kind import Answers, Post, UpstreamSettings, read_usage, unreachable
from antiphon.engines.upstreams.tokenizers import ServerTokenizer, Tokenizer
from antiphon.engines.vllm_next_token import groups_of

GENERATE = "/inference/v1/generate"
RENDER = "/v1/chat/completions/render"

REMEDY = (
    "If the model takes images: start vLLM with --enable-scale-out, or Antiphon with --upstream-kind chat."
)

MAX_NAMED = 19
"""Tokens that a request may name. With the likeliest one, as many as vLLM returns by default."""

PROBE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAEklEQVR42mMIhQKGUcYog3QGAE1xqgEfgS6gAAAA"
    "AElFTkSuQmCC"
)
"""An image of 64 by 64 pixels: a model that takes no images refuses it."""

_TOLD_AGAIN = {"kv_cache_report_mode": "full"}
"""Tells in events of all blocks of the prompt that are in the cache, not only of new ones."""
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
            "content_parts": _content_parts(request.prompt),
            "cache_salt": params.pop("cache_salt", None),
            "sampling_params": params,
            "reasoning_ended": request.constraint is not None or None,  # it holds from the first token on
            "output_mode": "text",
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return GENERATE, msgspec.json.encode(body)

    def _request_fields(self, request: GenerationRequest) -> dict[str, Any]:
        fields = super()._request_fields(request)
        if request.placement.tell_again:
            fields["vllm_xargs"] = {**_TOLD_AGAIN, **fields.get("vllm_xargs", {})}
        return fields

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


class _Named(Struct, frozen=True):
    token_id: TokenId
    logprob: float


class _NamedPosition(_Named, frozen=True):
    top_logprobs: tuple[_Named, ...] = ()


class _NamedLogprobs(Struct, frozen=True):
    content: tuple[_NamedPosition, ...] | None = None


class _NamedChoice(Struct, frozen=True):
    logprobs: _NamedLogprobs | None = None


class _NamedAnswer(Struct, frozen=True):
    choices: tuple[_NamedChoice, ...]
    usage: Any = None


class ScaleOutServer(VllmServer):
    """A vLLM that was started with `--enable-scale-out`: requests may name the tokens to be scored."""

    async def score_next(self, post: Post, request: NextTokenRequest) -> tuple[NextToken, ...]:
        """By one request for each prompt, and more for many tokens. The candidates have no texts."""

        async def read(prompt: Prompt, tokens: Sequence[int]) -> NextToken:
            answers = [
                await post(GENERATE, self._naming(prompt, group, request.sampling), _NamedAnswer)
                for group in groups_of(tokens, MAX_NAMED)
            ]
            usage = read_usage(answers[0].usage, CompletionUsage)
            details = usage.prompt_tokens_details if usage is not None else None
            cached = details.cached_tokens if details is not None else None
            return chosen(chain.from_iterable(map(_named_candidates, answers)), tokens, cached or 0)

        return await read_each(request, read)

    def _naming(self, prompt: Prompt, tokens: Sequence[int], sampling: Sampling) -> Mapping[str, Any]:
        """The request for the log probabilities of these tokens after a prompt."""
        params: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
        if tokens:
            # It returns as many as are named, and the likeliest first: so one is named twice.
            named = [*tokens, tokens[0]]
            params |= {"logprobs": len(named), "logprob_token_ids": named}
        request = GenerationRequest(prompt, 1, sampling)
        body = {**adapter_field(request), "token_ids": prompt.ids, "sampling_params": params}
        if prompt.media:
            body["content_parts"] = _content_parts(prompt)
        if sampling.cache_salt is not None:
            body["cache_salt"] = sampling.cache_salt
        return {"model": self._name, **body}


def _named_candidates(answer: _NamedAnswer) -> Iterator[Candidate]:
    for choice in answer.choices:
        for position in (choice.logprobs and choice.logprobs.content) or ():
            for one in (position, *position.top_logprobs):
                yield Candidate(one.token_id, "", one.logprob)


def _content_parts(prompt: Prompt) -> list[Mapping[str, Any]]:
    """The images of a prompt."""
    return [
        {"type": "image_url", "url": f"data:{part.media_type};base64,{b64encode(part.data).decode()}"}
        for part in prompt.media
    ]


def _check_text(request: GenerationRequest, param: str) -> None:
    """Raise RequestError for features that need prompts of text only."""
    if request.prompt.media:
        raise RequestError(
            f"vLLM does not support '{param}' with images in the prompt. Leave it out.", param=param
        )


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
    server = ScaleOutServer if await _has_generate(client) else VllmServer
    return server(model["id"], card, slots, tokenizer, defaults)


async def _has_generate(client: HttpClient) -> bool:
    """The server has vLLM's `GENERATE`. A request without tokens causes no work.

    Another Antiphon has the path as well, but scores no named tokens: its error has a code of its own.
    """
    try:
        response = await client.request("POST", GENERATE, {})
    except HttpError as error:
        raise unreachable(error) from error
    return b'"missing_required_parameter"' not in response.body and response.status not in (403, 404, 405)


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
    # What another Antiphon renders has an `object`: it takes no media with token ids.
    if not isinstance(answer, dict) or not answer.get("features") or "object" in answer:
        return frozenset(), "", {}
    params: Mapping[str, Any] = answer["sampling_params"]
    return frozenset({MediaKind.IMAGE}), "", {key: params[key] for key in _RECOMMENDED if key in params}
