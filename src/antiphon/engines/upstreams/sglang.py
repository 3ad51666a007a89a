"""SGLang, through its own `/generate`: tokens in both directions, cumulative texts by default.

By default each event has the whole text so far, so the data transferred grow with the square of the answer's
length; with `--incremental-streaming-output` the server sends only new text. Both are supported. An unknown
token id ends the server, so the number of ids is requested first, and every id is checked. A prompt with
images is sent as text: not all of its models take images with tokens.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.core.chunks import (
    Candidate,
    Chunk,
    Finish,
    FinishReason,
    PromptToken,
    Token,
    TokenCount,
    TokenId,
)
from antiphon.core.constraint import StructuralTag
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.items import MediaKind
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, ModelCard, NextToken, NextTokenRequest, Prompt
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.llama_request import check_ids
from antiphon.engines.next_token import LIKELIEST, chosen, read_each
from antiphon.engines.samplers import fields_of
from antiphon.engines.upstreams.characters import WholeEvents
from antiphon.engines.upstreams.completions import (
    Flavour,
    hides_special_tokens,
    is_owned_by,
    listed_adapters,
    listed_model,
    read_model,
)
from antiphon.engines.upstreams.kind import (
    CUMULATIVE,
    Answers,
    Lookups,
    Post,
    UpstreamSettings,
    refusal,
    texts_around_media,
    unexpected,
    unreachable,
)
from antiphon.engines.upstreams.tokenizers import ServerTokenizer, Tokenizer

SGLANG = Flavour(
    "sglang",
    "sglang",
    tokens=True,
    constraints=(StructuralTag,),
)

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_NO_TOKEN = 2**31 - 1

_Score = tuple[float | None, TokenId, Any]


class _End(Struct, frozen=True):
    type: str
    matched: Any = None
    status_code: int = 500
    message: str = ""


class _Meta(Struct, frozen=True):
    finish_reason: _End | None = None
    prompt_tokens: TokenCount = 0
    completion_tokens: TokenCount = 0
    cached_tokens: TokenCount = 0
    output_token_logprobs: list[_Score] = []
    output_top_logprobs: list[list[_Score] | None] = []
    output_token_ids_logprobs: list[list[_Score] | None] = []


class _ScoredPrompt(Struct, frozen=True):
    """For each token of a prompt: log probability (except the first), id and text; and the candidates."""

    input_token_logprobs: list[Raw]
    input_top_logprobs: list[Raw] | None = None


class _ScoredAnswer(Struct, frozen=True):
    meta_info: _ScoredPrompt


_read_scored = msgspec.json.Decoder(tuple[float | None, int, str]).decode
_read_tops = msgspec.json.Decoder(list[tuple[float, int, str]] | None).decode


def _scored_tokens(prompt: _ScoredPrompt, ids: Sequence[int]) -> tuple[PromptToken, ...]:
    """The tokens of a prompt. SGLang tells no ranks but those of candidates.

    Raises ValidationError, ValueError.
    """
    tops = prompt.input_top_logprobs or [Raw(b"null")] * len(ids)
    return tuple(
        _scored_token(token, _read_scored(scored), _read_tops(top) or ())
        for token, scored, top in zip(ids, prompt.input_token_logprobs, tops, strict=True)
    )


def _scored_token(
    token: int, scored: tuple[float | None, int, str], top: Sequence[tuple[float, int, str]]
) -> PromptToken:
    logprob, _, text = scored
    return PromptToken(
        token,
        text,
        logprob,
        tuple(Candidate(candidate, candidate_text, score) for score, candidate, candidate_text in top),
    )


class _SglangEvent(Struct, frozen=True):
    text: str = ""
    output_ids: tuple[TokenId, ...] = ()
    meta_info: _Meta = _Meta()
    error: Any = None


_decode = msgspec.json.Decoder(_SglangEvent).decode


class _NamedAnswer(Struct, frozen=True):
    meta_info: _Meta


class SglangServer:
    """An SGLang, whose model has `vocabulary` tokens."""

    kind = SGLANG.name
    path = "/generate"

    def __init__(self, card: ModelCard, slots: int, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.card = card
        self.slots = slots
        self.tokenize = tokenizer.tokenize
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        texts: Lookups[tuple[int, ...], str] = Lookups(self.detokenize)
        self._text = texts.__getitem__

    async def detokenize(self, ids: Sequence[int]) -> str:
        check_ids(ids, self._vocabulary, "tokens")
        return await self._tokenizer.detokenize(ids)

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        sampling = request.sampling
        check_ids(request.prompt.ids, self._vocabulary, "prompt")
        check_ids(sampling.logit_bias, self._vocabulary, "logit_bias")
        check_ids(sampling.stop_token_ids, self._vocabulary, "stop_token_ids")
        params: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "skip_special_tokens": hides_special_tokens(request),
            **fields_of(request, SGLANG.column),
        }
        if isinstance(request.constraint, StructuralTag):
            params["structural_tag"] = request.constraint.text
        body: dict[str, Any] = {**self._prompt(request.prompt), "sampling_params": params, "stream": True}
        if sampling.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs}
        return self.path, msgspec.json.encode({**body, **_own_fields(sampling)})

    def _prompt(self, prompt: Prompt) -> Mapping[str, Any]:
        """The prompt as tokens; as text, if there are images in it."""
        if not prompt.media:
            return {"input_ids": prompt.ids}
        first, *rest = texts_around_media(prompt, self.card)
        text = first + "".join(map(add, prompt.placeholders, rest))
        images = [f"data:{part.media_type};base64,{b64encode(part.data).decode()}" for part in prompt.media]
        return {"text": text, "image_data": images}

    async def score_prompt(self, post: Post, request: GenerationRequest) -> tuple[PromptToken, ...]:
        ids, sampling = request.prompt.ids, request.sampling
        if request.prompt.media:
            message = "SGLang does not support 'prompt_logprobs' with images in the prompt. Leave it out."
            raise RequestError(message, param="prompt_logprobs")
        check_ids(ids, self._vocabulary, "prompt")
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": sampling.prompt_logprobs,
            "return_text_in_logprobs": True,
        }
        answer = await post(self.path, {**body, **_own_fields(sampling)}, _ScoredAnswer)
        try:
            return await asyncio.to_thread(_scored_tokens, answer.meta_info, ids)
        except (msgspec.ValidationError, ValueError) as error:
            raise unexpected() from error

    async def score_next(self, post: Post, request: NextTokenRequest) -> tuple[NextToken, ...]:
        """SGLang returns the log probabilities of the tokens that a request names."""
        for ids in (request.beginning.ids, *(end.ids for end in request.ends), *request.tokens):
            check_ids(ids, self._vocabulary, "tokens")

        async def read(prompt: Prompt, tokens: Sequence[int]) -> NextToken:
            body = {
                **self._prompt(prompt),
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                "return_logprob": True,
                "top_logprobs_num": LIKELIEST,
                "return_text_in_logprobs": True,
                **({"token_ids_logprob": tokens} if tokens else {}),
                **_own_fields(request.sampling),
            }
            meta = (await post(self.path, body, _NamedAnswer)).meta_info
            rows = (*meta.output_top_logprobs[:1], *meta.output_token_ids_logprobs[:1])
            scores = (score for row in rows for score in row or ())
            candidates = (Candidate(token, text or "", logprob) for logprob, token, text in scores if logprob)
            return chosen(candidates, tokens, meta.cached_tokens)

        return await read_each(request, read)

    def reader(self, request: GenerationRequest) -> "SglangReader":
        return SglangReader(request, self._text)


def _own_fields(sampling: Sampling) -> Mapping[str, Any]:
    """What belongs to a prompt: its part of the cache, and the adapter, which is given by its name."""
    fields: dict[str, Any] = {}
    if sampling.cache_salt is not None:
        fields["extra_key"] = sampling.cache_salt
    if sampling.lora:
        fields["lora_path"] = sampling.lora[0].name
    return fields


class SglangReader:
    """Reads the events of a stream."""

    complete = ended = False
    line_limit = CUMULATIVE

    def __init__(self, request: GenerationRequest, text: Callable[[tuple[int, ...]], str]) -> None:
        sampling, prompt = request.sampling, request.prompt
        self._stops = frozenset(sampling.stop_token_ids)
        self._scored = sampling.logprobs is not None
        self._text = text
        self._events = WholeEvents(text) if request.resumable else None
        # Tokens of a prompt with images, as sent, without those of the images
        self._text_tokens = len(prompt.ids) if prompt.media else 0
        self._counted = 0
        self._written = 0  # characters

    def read(self, line: bytes) -> Chunk | None:
        data = line.removeprefix(b"data:").strip()
        if data in (line, b"[DONE]"):
            return None
        event = _decode(data)
        meta = event.meta_info
        end = meta.finish_reason
        if event.error is not None:
            raise refusal(500, data)
        if end is not None and end.type not in _REASONS:
            raise refusal(end.status_code, msgspec.json.encode({"message": end.message}))
        new = meta.completion_tokens - self._counted
        whole = len(event.output_ids) == meta.completion_tokens
        ids = event.output_ids[len(event.output_ids) - new :]
        new_text = event.text[self._written :] if whole else event.text
        scores = self._scores(len(ids), meta)
        text = new_text
        if self._events is not None:  # after this nothing raises NotFetched
            text = self._events.read(ids, text) if end is None else self._events.rest() + text
        last = len(ids) - 1
        tokens = tuple(
            Token(token, text if place == last else "", *score)
            for place, (token, score) in enumerate(zip(ids, scores, strict=True))
        )
        self._written += len(new_text)
        cached = 0 if self._counted else meta.cached_tokens
        media = (
            max(0, meta.prompt_tokens - self._text_tokens) if self._text_tokens and not self._counted else 0
        )
        self._counted = meta.completion_tokens
        if end is None:
            return Chunk(text, tokens, None, cached, media) if tokens else None
        self.complete = True
        stop = end.matched if end.matched in self._stops else None
        return Chunk(text, tokens, Finish(_REASONS[end.type], stop), cached, media)

    def _scores(self, count: int, meta: _Meta) -> Sequence[tuple[float | None, tuple[Candidate, ...]]]:
        """For each of the last tokens, its log probability and the alternatives to it."""
        if not self._scored:
            return [(None, ())] * count
        scores = meta.output_token_logprobs[len(meta.output_token_logprobs) - count :]
        tops = meta.output_top_logprobs[len(meta.output_top_logprobs) - count :] or [None] * count
        return [(score[0], self._candidates(top)) for score, top in zip(scores, tops, strict=True)]

    def _candidates(self, top: list[_Score] | None) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(token, self._text((token,)), logprob or 0.0) for logprob, token, _ in top or ()
        )

    def end(self) -> Chunk | None:
        return None


async def recognise(client: HttpClient, answers: Answers, settings: UpstreamSettings) -> SglangServer | None:
    """The server, if it is SGLang."""
    model = listed_model(answers, settings)
    if model is None or not (settings.kind or is_owned_by(model, SGLANG.name)):
        return None
    server_tokenizer = ServerTokenizer(
        client, model["id"], answer="text", body={"skip_special_tokens": False}
    )
    card, slots, tokenizer = await read_model(SGLANG, model, answers, settings, server_tokenizer)
    card = replace(card, adapters=listed_adapters(answers, model))
    if await _takes_images(client):
        capabilities = replace(card.capabilities, media=frozenset({MediaKind.IMAGE}), media_remedy="")
        card = replace(card, capabilities=capabilities)
    return SglangServer(card, slots, tokenizer, await _vocabulary(client))


async def _takes_images(client: HttpClient) -> bool:
    """Whether the model takes images, according to the server."""
    try:
        info = (await client.request("GET", "/model_info")).json()
    except HttpError as error:
        raise unreachable(error) from error
    return isinstance(info, dict) and bool(info.get("has_image_understanding"))


async def _vocabulary(client: HttpClient) -> int:
    """The number of tokens of the model: SGLang's error for an impossible token contains it."""
    params = {"max_new_tokens": 1, "logit_bias": {_NO_TOKEN: 0}}
    try:
        response = await client.request("POST", "/generate", {"text": "a", "sampling_params": params})
    except HttpError as error:
        raise unreachable(error) from error
    match = re.search(rb"keys in \[0, (\d+)\]", response.body)
    if match is None:
        raise EngineError(
            "This SGLang does not return the number of tokens of its model. Use it as text, with "
            "--upstream-kind completions."
        )
    return int(match[1]) + 1
