"""Servers with `/v1/completions`, OpenAI's oldest API, which nearly all have; `FLAVOURS` has the differences.

A `Flavour`, an entry of a table, lists the features of a kind of server. Servers that take tokens as prompts
and return tokens get tokens, the others get text.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from antiphon.core.constraint import Constraint, Gbnf, StructuralTag, WholePattern, WholeSchema
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Capabilities, GenerationRequest, ModelCard
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.models import tokenizer_folder
from antiphon.engines.samplers import fields_of, ranges, supported
from antiphon.engines.upstreams.characters import Characters, FirstText, may_repeat_prompt
from antiphon.engines.upstreams.gbnf_spelling import respelled
from antiphon.engines.upstreams.kind import (
    CUMULATIVE,
    MEDIA_REMEDY,
    MODELS,
    NO_ID,
    Answers,
    Lookups,
    NotFetched,
    OpenAIReader,
    Post,
    UpstreamSettings,
    not_understood,
    read_usage,
    unexpected,
    unreachable,
)
from antiphon.engines.upstreams.tokenizers import (
    SPARE,
    EstimatedTokens,
    Tokenizer,
    local_tokenizer,
    model_metadata,
)

DEFAULT_CONTEXT = 8192
"""Tokens, for a server that does not report its context."""

DEFAULT_SLOTS = 256
"""Requests at a time, for a server that has its own queue, whose waiting requests can be cancelled."""

ID_DIGITS = 10
"""Digits of the id of a token, at most."""

ANY_NUMBER = 2**31
"""How many alternatives a vLLM gives depends on its `--max-logprobs`: it refuses what is too much itself."""


class Flavour(Struct, frozen=True):
    """The features of a kind of server. `column` is its place in the table of samplers.

    `tokens`: prompts are tokens, and answers have their ids. `special`: it can write special tokens as text.
    It gives at most this number of `alternatives` to a token. `fixed` is sent with every request.
    """

    name: str
    column: str
    tokens: bool = False
    special: bool = False
    alternatives: int = 20
    constraints: tuple[type[Constraint], ...] = ()
    triggers: bool = True
    fixed: Mapping[str, Any] = {}


VLLM = Flavour(
    "vllm",
    "vllm_server",
    tokens=True,
    special=True,
    alternatives=ANY_NUMBER,
    constraints=(StructuralTag,),
    fixed={"return_token_ids": True, "return_tokens_as_token_ids": True},
)
ANY = Flavour("completions", "completions")

FLAVOURS = (VLLM, ANY)

TGI = "tgi"
"""Text Generation Inference: its list of models names no owner, but `/info` has its limits."""

ANTIPHON = "antiphon"
"""Another Antiphon, which renders prompts and decodes answers itself: it gets conversations."""

_REASONS = {
    "stop": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


class _Logprobs(Struct, frozen=True):
    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float | None, ...] = ()
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None


class _CompletionChoice(Struct, frozen=True):
    index: Any = 0
    text: str | None = ""
    token_ids: tuple[TokenId, ...] | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: _Logprobs | None = None


class PromptTokensDetails(Struct, frozen=True):
    """The tokens of a prompt by origin."""

    cached_tokens: TokenCount | None = None


class CompletionUsage(Struct, frozen=True):
    """The token usage of an answer."""

    completion_tokens: TokenCount = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class _CompletionEvent(Struct, frozen=True):
    choices: tuple[_CompletionChoice, ...] | None = ()
    usage: Any = None
    error: Any = None
    kv_transfer_params: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_CompletionEvent).decode


class _PromptLogprob(Struct, frozen=True):
    """A candidate at a position of the prompt; the most likely one has the rank 1."""

    logprob: float
    rank: int
    decoded_token: str


class _ScoredChoice(Struct, frozen=True):
    prompt_logprobs: list[Raw]


class _ScoredAnswer(Struct, frozen=True):
    choices: list[_ScoredChoice]


class _SearchedAnswer(Struct, frozen=True):
    """The beams. They are decoded one by one, because each may be large."""

    choices: list[Raw]


_read_choice = msgspec.json.Decoder(_CompletionChoice, strict=False).decode
_read_row = msgspec.json.Decoder(dict[int, _PromptLogprob] | None, strict=False).decode


def _read_scored(answer: _ScoredAnswer, ids: Sequence[int], count: int) -> list[PromptToken]:
    """The tokens of an answer, but the first. Raises ValidationError, ValueError, KeyError."""
    [choice] = answer.choices
    _, *rows = choice.prompt_logprobs
    return [_scored_token(token, _read_row(row), count) for token, row in zip(ids, rows, strict=True)]


def _scored_token(token: int, row: dict[int, _PromptLogprob] | None, count: int) -> PromptToken:
    """A token of a prompt, with this number of the most likely candidates.

    Raises KeyError if it is missing.
    """
    row = row or {}
    likeliest = sorted((entry.rank, candidate) for candidate, entry in row.items() if entry.rank <= count)
    top = (
        Candidate(candidate, row[candidate].decoded_token, row[candidate].logprob)
        for _, candidate in likeliest
    )
    own = row[token]
    return PromptToken(token, own.decoded_token, own.logprob, tuple(top), rank=own.rank)


class CompletionsServer:
    """A server of some flavour, and its model `name`."""

    path = "/v1/completions"

    def __init__(
        self, flavour: Flavour, name: str, card: ModelCard, slots: int, tokenizer: Tokenizer
    ) -> None:
        self.kind = flavour.name
        self.card = card
        self.slots = slots
        self.tokenize = tokenizer.tokenize
        self.detokenize = tokenizer.detokenize
        self._flavour = flavour
        self._spare = spare_of(tokenizer)
        self._fixed = {
            "model": name,
            "stream": True,
            "stream_options": {"include_usage": True},
            **flavour.fixed,
        }
        texts: Lookups[tuple[int, ...], str] = Lookups(self._look_up)
        self._decode = texts.__getitem__

    async def _look_up(self, ids: tuple[int, ...]) -> str:
        try:
            return await self.detokenize(ids)
        except RequestError:  # vocabularies have places that no text belongs to
            return ""

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        """Stop strings are not sent: the decoder above has to see them."""
        prompt = request.prompt.ids if self._flavour.tokens else request.prompt.text
        body = {**self._fixed, **adapter_field(request), "prompt": prompt, **self._request_fields(request)}
        if _decodes_elsewhere(request.sampling):
            body |= _NOT_STREAMED
        return self.path, msgspec.json.encode(body)

    def _request_fields(self, request: GenerationRequest) -> dict[str, Any]:
        """The fields of the request."""
        limit = max_tokens_of(request, self.card.context, self._spare)
        fields = {"max_tokens": limit, **fields_of(request, self._flavour.column)}
        if self._flavour.special and not hides_special_tokens(request):
            fields["skip_special_tokens"] = False
        match request.constraint:
            case StructuralTag(text):
                fields["structured_outputs"] = {"structural_tag": text}
            case Gbnf(text):
                fields["grammar_string"] = respelled(text)
            case WholeSchema(schema):
                fields["json_schema"] = schema
            case WholePattern(pattern):
                fields["regex_pattern"] = pattern
        return fields

    async def score_prompt(self, post: Post, request: GenerationRequest) -> tuple[PromptToken, ...]:
        """VLLM returns log probabilities of prompts only without streaming."""
        ids, sampling = request.prompt.ids, request.sampling
        count = sampling.prompt_logprobs or 0
        body = {"model": self._fixed["model"], "prompt": ids, "max_tokens": 1, "prompt_logprobs": count}
        body |= adapter_field(request)
        if sampling.cache_salt is not None:
            body["cache_salt"] = sampling.cache_salt
        answer = await post(self.path, body, _ScoredAnswer)
        try:
            scored = await asyncio.to_thread(_read_scored, answer, ids[1:], count)
        except (msgspec.ValidationError, ValueError, KeyError) as error:
            raise unexpected() from error
        return PromptToken(ids[0], await self.detokenize(ids[:1])), *scored

    async def search(self, post: Post, request: GenerationRequest) -> list[list[Chunk]]:
        """VLLM's server searches only if it does not stream.

        Raises RequestError for parameters that it would ignore.
        """
        sampling = request.sampling
        if sampling.stop_token_ids:
            message = "In a beam search, a vLLM server supports no 'stop_token_ids'. Leave them out."
            raise RequestError(message, param="stop_token_ids")
        body: dict[str, Any] = {
            **self._fixed,
            **adapter_field(request),
            **_NOT_STREAMED,
            "prompt": request.prompt.ids,
            "max_tokens": request.max_tokens,
            "use_beam_search": True,
            "n": sampling.beam_width,
            "temperature": 0,
            "include_stop_str_in_output": True,  # of the tokens only: the text is without their end
            "skip_special_tokens": hides_special_tokens(request),
        }
        for name in ("length_penalty", "ignore_eos", "logprobs", "cache_salt"):
            if (value := getattr(sampling, name)) is not None:
                body[name] = value
        answer = await post(self.path, body, _SearchedAnswer)
        reader = self.reader(request)
        return [[await self._beam(reader, choice)] for choice in answer.choices]

    async def _beam(self, reader: "CompletionsReader", encoded: Raw) -> Chunk:
        """A full answer as one chunk.

        Tokens have their texts if these, joined, are the text of the answer.
        """
        try:
            choice = await asyncio.to_thread(_read_choice, encoded)
        except msgspec.ValidationError as error:
            raise unexpected() from error
        while True:
            try:
                return reader.whole(choice)
            except NotFetched as missing:
                await missing.fetch()

    def reader(self, request: GenerationRequest) -> "CompletionsReader":
        kind = FullAnswerReader if _decodes_elsewhere(request.sampling) else CompletionsReader
        return kind(request, self._decode, counted=not self._flavour.tokens)


def spare_of(tokenizer: Tokenizer) -> int:
    """How many tokens more each token of a prompt may be: an estimate may be too low."""
    return SPARE if isinstance(tokenizer, EstimatedTokens) else 0


def max_tokens_of(request: GenerationRequest, context: int, spare: int) -> int:
    """The limit of the answer for the server: servers refuse more than they count as free after the prompt.

    After a prompt that is estimated, at least half of the estimated rest.
    """
    size = len(request.prompt.ids)
    room = context - size
    return min(request.max_tokens, max(room - spare * size, room // 2, 1))


def listed_adapters(answers: Answers, model: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the adapters that a server lists as models; none if the model is one of them."""
    if model.get("parent"):
        return ()
    return tuple(entry["id"] for entry in answers[MODELS]["data"] if entry.get("parent"))


def adapter_field(request: GenerationRequest) -> Mapping[str, Any]:
    """The model of a request with an adapter, which is a model of its own to vLLM's server."""
    return {"model": request.sampling.lora[0].name} if request.sampling.lora else {}


def hides_special_tokens(request: GenerationRequest) -> bool:
    """Whether the server can leave special tokens out of the text: neither decoder nor client needs them."""
    return not request.preserve and request.sampling.skip_special_tokens is not False


_NOT_STREAMED = {"stream": False, "stream_options": None}  # vLLM refuses options without a stream


def _decodes_elsewhere(sampling: Sampling) -> bool:
    """Another vLLM continues the prompt.

    This one returns the parameters for that only in answers that are not streamed.
    """
    return bool(sampling.kv_transfer_params.get("do_remote_decode"))


class CompletionsReader(OpenAIReader):
    """Reads the events of completions. `text` finds the text of tokens.

    `counted`: the server counts the tokens, without naming them.
    """

    def __init__(
        self,
        request: GenerationRequest,
        text: Callable[[tuple[int, ...]], str],
        *,
        counted: bool,
        decode: Callable[[bytes], Any] = _decode,
    ) -> None:
        super().__init__(decode)
        sampling = request.sampling
        self._text = text
        self._characters = Characters(text) if request.resumable and not counted else None
        self._first = FirstText(text, request) if may_repeat_prompt(request) and not counted else None
        self._stops = frozenset(sampling.stop_token_ids)
        self._candidate_count = sampling.logprobs
        self._counted = counted
        self._bytes = 0
        self._last: Chunk | None = None

    def _chunk_of(self, choice: _CompletionChoice) -> Chunk | None:
        chunk = self._chunk(choice)
        if chunk.finish is None:
            return chunk if chunk.text or chunk.tokens else None
        if not chunk.text:
            self._last = chunk
            return None
        # The text must not wait for the usage. Hidden tokens do: no answer is continued after its end token.
        places = (place for place, token in enumerate(chunk.tokens, 1) if token.text)
        end = max(places, default=len(chunk.tokens))
        self._last = Chunk("", chunk.tokens[end:], chunk.finish)
        return Chunk(chunk.text, chunk.tokens[:end])

    def _chunk(self, choice: _CompletionChoice) -> Chunk:
        ids, text = choice.token_ids, choice.text or ""
        finish = self._finish(choice) if choice.finish_reason else None  # some servers send "" until the end
        if self._counted or not ids:
            self._bytes += len(text.encode())
            return Chunk(text, self._tokens_of(text, choice.logprobs), finish)
        if len(ids) == 1 and choice.logprobs is None and self._first is None:  # as most events
            if self._characters is not None:
                self._characters.read(ids, text)
            return Chunk(text, (Token(ids[0], text),), finish)
        scores = [(None, ())] * len(ids) if choice.logprobs is None else self._scores(choice.logprobs)
        if self._first is not None:
            text = self._first.read(ids, text)
        end = len(ids) if self._characters is None else self._end(self._characters, ids, text, finish)
        if self._first is not None:  # from here on nothing raises NotFetched
            self._first.skip(ids)
            self._first = None if text else self._first
        texts = (text if place == end else "" for place in range(1, len(ids) + 1))
        return Chunk(
            text,
            tuple(
                Token(token, token_text, *score)
                for token, token_text, score in zip(ids, texts, scores, strict=True)
            ),
            finish,
        )

    def _tokens_of(self, text: str, scores: _Logprobs | None) -> tuple[Token, ...]:
        """The tokens of a text, if they are wanted: only their texts are known."""
        if scores is None or not self._counted or self._candidate_count is None:
            return ()
        tops = scores.top_logprobs or (None,) * len(scores.tokens)
        return tuple(
            Token(NO_ID, part, logprob, self._without_ids(top), None if part == piece else piece.encode())
            for (part, piece), logprob, top in zip(
                spread(text, scores.tokens), scores.token_logprobs, tops, strict=True
            )
        )

    def _without_ids(self, top: dict[str, float] | None) -> tuple[Candidate, ...]:
        """The alternatives that are named by their texts, the likeliest first."""
        likeliest = sorted((top or {}).items(), key=lambda pair: -pair[1])[: self._candidate_count]
        return tuple(Candidate(NO_ID, text, logprob) for text, logprob in likeliest)

    def _end(self, characters: Characters, ids: tuple[int, ...], text: str, finish: Finish | None) -> int:
        """The number of these tokens that the text belongs to."""
        if finish is not None and finish.reason is FinishReason.STOP and len(ids) > 1 and text:
            last = self._text(ids[-1:])
            if not (last and text.endswith(last)):  # the end token, which is hidden
                ids = ids[:-1]
        return characters.read(ids, text)

    def _scores(self, scores: Any) -> Sequence[tuple[float | None, tuple[Candidate, ...]]]:
        """For each token, its log probability and the alternatives to it."""
        tops = scores.top_logprobs or (None,) * len(scores.token_logprobs)
        return [*zip(scores.token_logprobs, map(self._candidates, tops), strict=True)]

    def whole(self, choice: _CompletionChoice) -> Chunk:
        """An answer that is not streamed, as one chunk. Raises NotFetched."""
        chunk = self._chunk(choice)
        texts = [self._text((token.id,)) for token in chunk.tokens]
        if chunk.finish is not None and chunk.finish.reason is FinishReason.STOP:
            texts[-1:] = [""]
        if "".join(texts) != chunk.text:
            return chunk
        tokens = (replace(token, text=text) for token, text in zip(chunk.tokens, texts, strict=True))
        return replace(chunk, tokens=(*tokens,))

    def _candidates(self, top: dict[str, float] | None) -> tuple[Candidate, ...]:
        if top is None or not self._candidate_count:  # the token itself is always listed
            return ()
        ids = [(_id_of(name), logprob) for name, logprob in top.items()]
        ids.sort(key=lambda pair: -pair[1])
        return tuple(
            Candidate(token, self._text((token,)), logprob) for token, logprob in ids[: self._candidate_count]
        )

    def _finish(self, choice: _CompletionChoice) -> Finish:
        reason = _REASONS.get(choice.finish_reason or "")
        if reason is None:
            raise not_understood("finish_reason", choice.finish_reason or "")
        stop = choice.stop_reason if choice.stop_reason in self._stops else None
        return Finish(reason, stop)

    def end(self) -> Chunk | None:
        last, self._last = self._last, None
        if last is None or last.finish is None:
            return None
        self.complete = True
        usage = read_usage(self._usage, CompletionUsage)
        details = usage.prompt_tokens_details if usage is not None else None
        cached = (details.cached_tokens if details is not None else None) or 0
        if not self._counted:
            return Chunk(last.text, last.tokens, last.finish, cached)
        count = usage.completion_tokens if usage is not None else -(-self._bytes // 4)
        finish = Finish(last.finish.reason, last.finish.stop, count)
        return Chunk(last.text, last.tokens, finish, cached)


def spread(text: str, pieces: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Which part of a text each of the pieces adds to it, that make it up; with the piece.

    A piece that is not found there is hidden, or a part of a character: it adds nothing. The last one adds
    the rest.
    """
    at = 0
    for place, piece in enumerate(pieces, 1):
        last = place == len(pieces)
        part = text[at:] if last else piece if text.startswith(piece, at) else ""
        at += len(part)
        yield part, piece


def _id_of(name: str) -> int:
    """The id in the name of a token. Raises EngineError."""
    digits = name.removeprefix("token_id:")
    if not digits.isdecimal() or len(digits) > ID_DIGITS or int(digits) >= 2**31:
        raise not_understood("token", name)
    return int(digits)


class FullAnswerReader(CompletionsReader):
    """Reads an answer that is not streamed."""

    line_limit = CUMULATIVE
    _kv_transfer: Mapping[str, Any] | None = None

    def read(self, line: bytes) -> Chunk | None:
        """The answer is one line."""
        answer = self._decode(line)
        self._usage, self._kv_transfer = answer.usage, answer.kv_transfer_params
        return self._chunk_of(answer.choices[0])

    def end(self) -> Chunk | None:
        last = super().end()
        if last is None or last.finish is None:
            return last
        return replace(last, finish=replace(last.finish, kv_transfer_params=self._kv_transfer))


async def recognise(
    client: HttpClient, answers: Answers, settings: UpstreamSettings
) -> CompletionsServer | None:
    """The server, if it has `/v1/completions`."""
    model = listed_model(answers, settings)
    if model is None:
        return None
    if not settings.kind and is_owned_by(model, ANTIPHON):
        return None
    if not await _has_endpoint(client, model["id"]):
        return None
    card, slots, tokenizer = await read_model(ANY, model, answers, settings, EstimatedTokens())
    return CompletionsServer(ANY, model["id"], card, slots, tokenizer)


async def _has_endpoint(client: HttpClient, name: str) -> bool:
    """The server takes prompts, and not only conversations. A request without a prompt causes no work."""
    try:
        status = (await client.request("POST", CompletionsServer.path, {"model": name})).status
    except HttpError as error:
        raise unreachable(error) from error
    return status not in (404, 405)


def is_owned_by(model: Mapping[str, Any], name: str) -> bool:
    """The server that lists this model calls itself so."""
    return str(model.get("owned_by")).lower() == name


def listed_model(answers: Answers, settings: UpstreamSettings) -> Mapping[str, Any] | None:
    """The requested model, if it is listed. Raises EngineError if it is not."""
    info = answers.get("/info")
    if isinstance(info, dict) and "max_total_tokens" in info:
        if settings.model not in (None, info["model_id"]):
            raise EngineError(f"The server has no model '{settings.model}'. It has {info['model_id']}.")
        return {"id": info["model_id"], "owned_by": TGI, "max_model_len": info["max_total_tokens"]}
    listed = answers.get("/v1/models")
    if not isinstance(listed, dict) or not listed.get("data"):
        return None
    models: dict[str, Mapping[str, Any]] = {entry["id"]: entry for entry in listed["data"]}
    loaded = answers.get("/v1/model")  # TabbyAPI lists all that it could load
    name = settings.model or (loaded["id"] if isinstance(loaded, dict) else next(iter(models)))
    if name not in models:
        raise EngineError(f"The server has no model '{name}'. It has {', '.join(models)}.")
    return {**models[name], **(loaded if isinstance(loaded, dict) and name == loaded["id"] else {})}


async def read_model(
    flavour: Flavour,
    model: Mapping[str, Any],
    answers: Answers,
    settings: UpstreamSettings,
    tokenizer: Tokenizer,
) -> tuple[ModelCard, int, Tokenizer]:
    """The card of this model, the number of slots, and its tokenizer."""
    names = (model["id"], str(model.get("root") or ""))
    limits = model.get("parameters") or {}
    folder = await asyncio.to_thread(tokenizer_folder, settings.tokenizer) if settings.tokenizer else None
    if folder is not None:
        tokenizer = await asyncio.to_thread(local_tokenizer, folder)
    metadata = await asyncio.to_thread(model_metadata, answers, reversed(names), folder)
    # Text gets the token that it has to begin with from the server: a template must not write it, too.
    opening = await tokenizer.opening() if flavour.tokens else None
    spelled = "" if opening is None else await tokenizer.detokenize((opening,))
    if opening is not None and await tokenizer.tokenize([spelled]) != [opening]:
        raise EngineError(
            f"The tokenizer of this server reads the special token {spelled} as text, as Mistral's own does. "
            "Give the folder of the model's tokenizer: --tokenizer FOLDER."
        )
    bos = metadata.bos or spelled
    card = ModelCard(
        name=model["id"],
        context=settings.context
        or model.get("max_model_len")
        or limits.get("max_seq_len")
        or DEFAULT_CONTEXT,
        chat_template=metadata.chat_template,
        conversation_template=tokenizer.conversation_template,
        bos=bos if flavour.tokens else "",
        eos=metadata.eos or tokenizer.eos,
        created=int(time.time()),
        known_as=names,
        response_template=metadata.response_template,
        opening=opening,
        special_tokens=metadata.special_tokens | tokenizer.special | {metadata.bos},
        capabilities=Capabilities(
            token_ids=flavour.tokens,
            text_prompts=not flavour.tokens,
            sampling=supported(flavour.column),
            ranges=ranges(flavour.column),
            alternatives=flavour.alternatives,
            constraints=flavour.constraints,
            triggers=flavour.triggers,
            media_remedy=MEDIA_REMEDY,
        ),
    )
    return card, settings.parallel or DEFAULT_SLOTS, tokenizer
