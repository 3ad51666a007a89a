"""Text Generation Inference, through its own `/generate_stream`: it has more samplers than `/v1/completions`.

It takes and returns text. Each event has one token, with its log probability, and the answer's end is part of
the last one: docs/openapi.json and router/src/server.rs in its repository, as of version 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.chunks import Candidate, Chunk, Finish, FinishReason, Token, TokenCount, TokenId
from antiphon.core.constraint import WholePattern, WholeSchema
from antiphon.engines.engine import GenerationRequest, ModelCard
from antiphon.engines.http_client import HttpClient
from antiphon.engines.samplers import fields_of
from antiphon.engines.upstreams.completions import (
    ANY_NUMBER,
    TGI,
    Flavour,
    hides_special_tokens,
    is_owned_by,
    listed_model,
    max_tokens_of,
    read_model,
    spare_of,
)
from antiphon.engines.upstreams.kind import (
    EVENT,
    NO_ID,
    Answers,
    UpstreamSettings,
    error_status,
    not_understood,
    refusal,
)
from antiphon.engines.upstreams.tokenizers import EstimatedTokens, Tokenizer

NAME = TGI

FLAVOUR = Flavour(TGI, TGI, alternatives=ANY_NUMBER, constraints=(WholeSchema, WholePattern))
"""How many alternatives it gives depends on its `--max-top-n-tokens`: it refuses what is too much itself."""

_REASONS = {
    "length": FinishReason.LENGTH,
    "eos_token": FinishReason.STOP,
}

_STATUSES = {"validation": 422, "overloaded": 429, "generation": 424}
"""It reports errors in the stream: `error_type` → status."""


class _Token(Struct, frozen=True):
    id: TokenId = 0
    text: str = ""
    logprob: float = 0.0
    special: bool = False


class _Details(Struct, frozen=True):
    finish_reason: str
    generated_tokens: TokenCount = 0


class _Event(Struct, frozen=True):
    token: _Token | None = None
    top_tokens: tuple[_Token, ...] | None = None
    details: _Details | None = None
    error: Any = None
    error_type: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class TgiServer:
    """A Text Generation Inference, and its only model."""

    kind = NAME
    path = "/generate_stream"

    def __init__(self, card: ModelCard, slots: int, tokenizer: Tokenizer) -> None:
        self.card = card
        self.slots = slots
        self.tokenize = tokenizer.tokenize
        self.detokenize = tokenizer.detokenize
        self._spare = spare_of(tokenizer)

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        """Stop strings are not sent: the decoder above has to see them. It samples only if it is told to."""
        parameters = {
            "max_new_tokens": max_tokens_of(request, self.card.context, self._spare),
            "details": True,
            "do_sample": True,
            **fields_of(request, FLAVOUR.column),
            **_grammar(request),
        }
        return self.path, msgspec.json.encode({"inputs": request.prompt.text, "parameters": parameters})

    def reader(self, request: GenerationRequest) -> "_Reader":
        return _Reader(request)


def _grammar(request: GenerationRequest) -> Mapping[str, Any]:
    """The format of the answer, which the server makes a regular expression."""
    match request.constraint:
        case WholeSchema(schema):
            return {"grammar": {"type": "json", "value": schema}}
        case WholePattern(pattern):
            return {"grammar": {"type": "regex", "value": pattern}}
        case _:
            return {}


class _Reader:
    """Reads the events of a stream.

    The token that ends an answer is no part of it: the model's own, or one of `stop_token_ids`, of which the
    server does not know.
    """

    complete = ended = False
    line_limit = EVENT

    def __init__(self, request: GenerationRequest) -> None:
        self._scored = request.sampling.logprobs is not None
        self._count = request.sampling.logprobs or 0
        self._hides = hides_special_tokens(request)
        self._stops = frozenset(request.sampling.stop_token_ids)
        self._read = 0

    def read(self, line: bytes) -> Chunk | None:
        if not line.startswith(b"data:"):
            return None
        data = line[5:].strip()
        event = _decode(data)
        if event.error is not None:
            raise refusal(_STATUSES.get(event.error_type or "") or error_status(event.error), data)
        self._read += event.token is not None
        finish = self._finish_of(event)
        ended = finish is not None and finish.reason is FinishReason.STOP
        chunk = Chunk("", (), finish) if ended else self._chunk_of(event, finish)
        self.complete = self.ended = finish is not None
        return chunk if chunk.text or chunk.tokens or finish is not None else None

    def _finish_of(self, event: _Event) -> Finish | None:
        """The end of the answer, if this is it. Raises EngineError for a reason that is not known."""
        if event.token is not None and event.token.id in self._stops:
            return Finish(FinishReason.STOP, event.token.id, self._read)
        if event.details is None:
            return None
        reason = _REASONS.get(event.details.finish_reason)
        if reason is None:
            raise not_understood("finish_reason", event.details.finish_reason)
        return Finish(reason, completion_tokens=event.details.generated_tokens)

    def _chunk_of(self, event: _Event, finish: Finish | None) -> Chunk:
        token = event.token
        if token is None:
            return Chunk("", (), finish)
        text = "" if token.special and self._hides else token.text
        tokens = (self._token(token, text, event.top_tokens or ()),) if self._scored else ()
        return Chunk(text, tokens, finish)

    def _token(self, token: _Token, text: str, tops: Sequence[_Token]) -> Token:
        raw = None if text == token.text else token.text.encode()
        return Token(NO_ID, text, token.logprob, tuple(self._alternatives(tops)), raw)

    def _alternatives(self, tops: Sequence[_Token]) -> Iterator[Candidate]:
        """The likeliest tokens. It adds those that are exactly as likely as the last one."""
        for top in sorted(tops, key=lambda top: -top.logprob)[: self._count]:
            yield Candidate(NO_ID, top.text, top.logprob)

    def end(self) -> Chunk | None:
        return None


async def recognise(client: HttpClient, answers: Answers, settings: UpstreamSettings) -> TgiServer | None:
    """The server, if it is Text Generation Inference."""
    model = listed_model(answers, settings)
    if model is None or not (settings.kind or is_owned_by(model, TGI)):
        return None
    return TgiServer(*await read_model(FLAVOUR, model, answers, settings, EstimatedTokens()))
