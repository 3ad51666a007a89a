"""Servers that take conversations only: OpenAI, OpenRouter, any with `/v1/chat/completions`.

They have their own templates, tokens and decoders: they get messages, and return the parts of the answer. A
`Provider`, an entry of a table, lists the features of one, and its names for them.

To add a provider that takes conversations only: an entry of `PROVIDERS`; one with an API of its own is a
module next to this one, in `KINDS` of `engines/upstream.py`, whose server is a `ChatServer`. Its exchanges,
with their source, in `tests/engines/test_upstream_chat.py`; its row in `docs/engines.md`.
"""

import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.chunks import (
    ByteValue,
    Candidate,
    ChatChunk,
    Chunk,
    Finish,
    FinishReason,
    Piece,
    PieceKind,
    Token,
    TokenCount,
)
from antiphon.core.constraint import JsonObject, JsonSchema
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.turn import CallMode, Sampling, Turn
from antiphon.engines.engine import Capabilities, GenerationRequest, ModelCard
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.upstreams.kind import (
    NO_ID,
    SIGNATURES,
    Answers,
    BoundedDict,
    ChatServer,
    OpenAIReader,
    Recognise,
    UpstreamSettings,
    error_status,
    not_understood,
    read_usage,
    refusal,
    unreachable,
)

DEFAULT_SLOTS = 256
"""Simultaneous requests. Providers have their own limits, and report them."""

_SHORT_ID = 9
"""Letters and digits of the call ids that Mistral accepts."""

_NAMES = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "logprobs")
_OPENAI: Mapping[str, str] = MappingProxyType({name: name for name in _NAMES})
"""The fields that every such server has, by the names of OpenAI's API."""

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Under which messages have their reasoning, see `render.messages.gather`."""


def _short_id(call_id: str) -> str:
    if len(call_id) == _SHORT_ID and call_id.isalnum() and call_id.isascii():
        return call_id
    return sha256(call_id.encode()).hexdigest()[:_SHORT_ID]


class Provider(Struct, frozen=True):
    """The features of a kind of server, and its names for them.

    `sampling` has the fields of `Sampling` that it takes, and their names there; `recognise` decides by an
    entry of its list of models whether it is this one. `developer`: it has messages of that role.
    `reasoning` is the key of messages under which it takes earlier reasoning. `effort` and `thinking` make
    fields from the reasoning effort, and from whether to reason at all; `budget` from the limit of reasoning
    tokens. `schemas`: it takes JSON Schemas for answers. `required` is the tool choice that demands a call.
    `usage`: it reports usage on request only. `call_id` makes ids of calls that it accepts. `media` are the
    kinds that are sent to a model whose entry names none; the server refuses those that it does not take.
    `unsigned` replaces an unknown signature of a call, for servers that demand one.
    """

    name: str
    recognise: Callable[[Mapping[str, Any]], bool]
    sampling: Mapping[str, str] = _OPENAI
    developer: bool = False
    reasoning: str | None = None
    effort: Callable[[str], Mapping[str, Any]] | None = None
    thinking: Callable[[bool], Mapping[str, Any]] | None = None
    budget: Callable[[int], Mapping[str, Any]] | None = None
    verbosity: bool = False
    schemas: bool = True
    required: str = "required"
    usage: bool = True
    call_id: Callable[[str], str] = str
    media: frozenset[MediaKind] = frozenset()
    unsigned: Mapping[str, Any] | None = None


def _effort(effort: str) -> Mapping[str, Any]:
    return {"reasoning_effort": effort}


def _owned_by(*owners: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda model: str(model.get("owned_by")).lower().startswith(owners)


OPENAI = Provider(
    "openai",
    _owned_by("openai", "system"),  # most of its models are listed as owned by "system"
    {**_OPENAI, "max_tokens": "max_completion_tokens", "logit_bias": "logit_bias"},
    developer=True,
    effort=_effort,
    verbosity=True,
    media=frozenset({MediaKind.IMAGE}),
)
OPENROUTER = Provider(
    "openrouter",
    lambda model: "supported_parameters" in model,
    {name: name for name in (*_NAMES, "top_k", "min_p", "repetition_penalty", "logit_bias")},
    reasoning="reasoning",
    effort=lambda effort: {"reasoning": {"effort": effort}},
    thinking=lambda reasons: {"reasoning": {"enabled": reasons}},
    budget=lambda tokens: {"reasoning": {"max_tokens": tokens}},
    verbosity=True,
)
MISTRAL = Provider(
    "mistral",
    _owned_by("mistralai"),
    {name: wire for name, wire in _OPENAI.items() if name != "logprobs"} | {"seed": "random_seed"},
    required="any",
    usage=False,
    call_id=_short_id,
)
GROQ = Provider(
    "groq",
    lambda model: "context_window" in model and "active" in model,
    {name: wire for name, wire in _OPENAI.items() if name != "logprobs"}
    | {"max_tokens": "max_completion_tokens"},
    effort=_effort,
    media=frozenset({MediaKind.IMAGE}),
)
DEEPSEEK = Provider(
    "deepseek",
    _owned_by("deepseek"),
    {name: wire for name, wire in _OPENAI.items() if name != "seed"},
    reasoning="reasoning_content",
    thinking=lambda reasons: {"thinking": {"type": "enabled" if reasons else "disabled"}},
    schemas=False,
)
GOOGLE = Provider(
    "google",
    lambda model: str(model.get("id")).startswith("models/"),
    {name: wire for name, wire in _OPENAI.items() if name not in ("seed", "logprobs")},
    effort=_effort,
    media=frozenset({MediaKind.IMAGE}),
    unsigned={"google": {"thought_signature": "skip_thought_signature_validator"}},
)
ANY = Provider(
    "chat",
    lambda _: True,
    reasoning="reasoning_content",
    effort=_effort,
    media=frozenset({MediaKind.IMAGE}),
)

PROVIDERS_BY_MODEL = (OPENROUTER, GROQ, MISTRAL, DEEPSEEK, GOOGLE, OPENAI)
"""The providers that their models tell, in this order: other providers have OpenAI's models, too."""

PROVIDERS = (*PROVIDERS_BY_MODEL, ANY)

_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


# What is sent


class ProviderServer(ChatServer):
    """A server of some provider, and its model."""

    path = "/v1/chat/completions"

    def __init__(self, provider: Provider, card: ModelCard, slots: int) -> None:
        super().__init__(provider.name, card, slots, _parameter_support(provider))
        self._provider = provider
        self._signatures: BoundedDict[str, Any] = BoundedDict(SIGNATURES)  # by the ids of calls

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        """Stop strings are not sent: the decoder has to report which one matched."""
        conversation, provider = request.conversation, self._provider
        assert conversation is not None
        turn, media = conversation.turn, iter(request.prompt.media)
        body = {
            "model": self.card.name,
            "messages": [self._message(message, media) for message in conversation.messages],
            "stream": True,
            **({"stream_options": {"include_usage": True}} if provider.usage else {}),
            **self._sampling(request.sampling),
            **self._tools(turn),
            **self._format(turn),
            **self._variables(turn),
        }
        return self.path, msgspec.json.encode(body)

    def _message(self, message: Mapping[str, Any], media: Iterator[MediaPart]) -> dict[str, Any]:
        """A message in the provider's form. `media` are those that are still to be sent."""
        provider = self._provider
        sent = {key: value for key, value in message.items() if key not in REASONING_KEYS}
        if provider.reasoning is not None and (reasoning := message.get(REASONING_KEYS[0])):
            sent[provider.reasoning] = reasoning
        if isinstance(sent["content"], list):
            sent["content"] = [part if "text" in part else medium(next(media)) for part in sent["content"]]
        if sent["role"] == "developer" and not provider.developer:
            sent["role"] = "system"
        if sent["role"] == "tool":
            sent["tool_call_id"] = provider.call_id(sent["tool_call_id"])
        if calls := sent.get("tool_calls"):
            sent["tool_calls"] = [*self._calls(calls)]
            sent["content"] = sent["content"] or None
        return sent

    def _calls(self, calls: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """The calls of a message, with their signature: one is enough for several calls."""
        signed = {
            call["id"]: self._signatures[call["id"]] for call in calls if call["id"] in self._signatures
        }
        if not signed and self._provider.unsigned is not None:
            signed = {calls[0]["id"]: self._provider.unsigned}
        for call in calls:
            extra = {"extra_content": signed[call["id"]]} if call["id"] in signed else {}
            yield {**call, "id": self._provider.call_id(call["id"]), **extra}

    def _sampling(self, sampling: Sampling) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        for name, wire in self._provider.sampling.items():
            value = getattr(sampling, name)
            if name == "logprobs":
                sent |= {} if value is None else {"logprobs": True, "top_logprobs": value}
            elif value is not None and value != {}:
                sent[wire] = value
        return sent

    def _tools(self, turn: Turn) -> dict[str, Any]:
        """The tools that may be called, and how. Those that may not are left out."""
        choice = turn.tool_choice
        tools = [tool for tool in turn.known_tools if choice.names is None or tool.name in choice.names]
        if not tools:
            return {}
        sent: dict[str, Any] = {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        **({"description": tool.description} if tool.description else {}),
                        "parameters": tool.parameters or {"type": "object", "properties": {}},
                        **({"strict": True} if tool.strict else {}),
                    },
                }
                for tool in tools
            ]
        }
        if choice.calling is CallMode.NONE:
            sent["tool_choice"] = "none"
        elif choice.calling is CallMode.REQUIRED:
            one = {"type": "function", "function": {"name": tools[0].name}}
            sent["tool_choice"] = one if choice.named and len(tools) == 1 else self._provider.required
        if not choice.parallel:
            sent["parallel_tool_calls"] = False
        return sent

    def _format(self, turn: Turn) -> dict[str, Any]:
        """The form of the answer. Raises RequestError if the provider does not have it."""
        match turn.format:
            case None:
                return {}
            case JsonObject():
                return {"response_format": {"type": "json_object"}}
            case JsonSchema(schema, strict, name, description) if self._provider.schemas:
                described = {} if description is None else {"description": description}
                json_schema = {"name": name, "schema": schema, "strict": strict, **described}
                return {"response_format": {"type": "json_schema", "json_schema": json_schema}}
        forms = "JSON Schemas and JSON objects" if self._provider.schemas else "JSON objects"
        message = (
            f"As the format of an answer, the server of this model supports only {forms}. "
            "Use these, or leave it out."
        )
        raise RequestError(message, param="format")

    def _variables(self, turn: Turn) -> dict[str, Any]:
        """The variables of a chat template for which the provider has fields."""
        variables, provider = dict(turn.variables), self._provider
        effort, verbosity = variables.pop("reasoning_effort", None), variables.pop("verbosity", None)
        reasons = {variables.pop(name, None) for name in ("enable_thinking", "thinking")} - {None}
        if variables:
            names = ", ".join(variables)
            message = (
                "The server of this model does not support variables of the chat "
                f"template: {names}. Leave them out."
            )
            raise RequestError(message, param="chat_template_kwargs")
        sent: dict[str, Any] = {}
        if turn.reasoning_limit is not None:
            if provider.budget is None:
                message = "The server of this model cannot limit its reasoning. Leave it out."
                raise RequestError(message, param="reasoning_limit")
            sent |= provider.budget(turn.reasoning_limit)
        elif effort is not None:
            if provider.effort is None:
                message = "The server of this model does not support a reasoning effort. Leave it out."
                raise RequestError(message, param="reasoning_effort")
            sent |= provider.effort(effort)
        elif reasons and provider.thinking is not None:
            sent |= provider.thinking(any(reasons))
        if verbosity is not None:
            if not provider.verbosity:
                raise RequestError(
                    "The server of this model does not support a verbosity. Leave it out.", param="verbosity"
                )
            sent["verbosity"] = verbosity
        return sent

    def reader(self, request: GenerationRequest) -> "ChatReader":
        return ChatReader(self._signatures.put)


def medium(part: MediaPart) -> dict[str, Any]:
    """A part that is not text: images and audio as OpenAI has them, video as OpenRouter and vLLM do."""
    data = b64encode(part.data).decode()
    if part.kind is MediaKind.AUDIO:
        form = _AUDIO.get(part.media_type, part.media_type.rpartition("/")[2])
        return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    name = f"{part.kind}_url"
    return {"type": name, name: {"url": f"data:{part.media_type};base64,{data}"}}


_AUDIO = {"audio/mpeg": "mp3", "audio/mp4": "m4a"}
"""Formats whose name is not that of their type."""


def _parameter_support(provider: Provider) -> dict[str, str | None]:
    """How parameters are passed on that only some providers have, for people."""
    schema = "as a JSON Schema; checked afterwards, and faults listed in `unmet`"
    return {
        "json_schema": schema if provider.schemas else None,
        "reasoning_effort": provider.effort and _shown(provider.effort("high")),
        "thinking": _shown(provider.thinking(True)) if provider.thinking else "left to the model",
        "thinking_token_budget": provider.budget and _shown(provider.budget(1024)),
        "verbosity": "passed on" if provider.verbosity else None,
        "earlier reasoning": f"sent as {provider.reasoning}" if provider.reasoning else "not sent",
    }


def _shown(fields: Mapping[str, Any]) -> str:
    return f"as {msgspec.json.encode(fields).decode()}"


# What is received


class _Candidate(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[ByteValue] | None = None


class Scored(_Candidate, frozen=True):
    """A token, with the likeliest ones at its place."""

    top_logprobs: list[_Candidate] | None = None


class Logprobs(Struct, frozen=True):
    """Log probabilities of tokens, which are identified by their texts."""

    content: list[Scored] | None = None
    refusal: list[Scored] | None = None


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: Any = None


class _Call(Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _Delta(Struct, frozen=True):
    content: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _ChatChoice(Struct, frozen=True):
    index: Any = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    error: Any = None


class _TokensDetails(Struct, frozen=True):
    cached_tokens: TokenCount | None = None
    reasoning_tokens: TokenCount | None = None


class _ChatUsage(Struct, frozen=True):
    prompt_tokens: TokenCount = 0
    completion_tokens: TokenCount = 0
    prompt_tokens_details: _TokensDetails | None = None
    completion_tokens_details: _TokensDetails | None = None


class _ChatEvent(Struct, frozen=True):
    choices: list[_ChatChoice] | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_ChatEvent).decode
_NO_DETAILS = _TokensDetails()


class ChatReader(OpenAIReader):
    """Reads the events of chats. `sign` gets the signatures of calls, by the ids of these."""

    def __init__(self, sign: Callable[[str, Any], None] = lambda _id, _content: None) -> None:
        super().__init__(_decode)
        self._sign = sign
        self._reason: FinishReason | None = None
        self._last_call = 0  # the number of the current call
        self._last_id = ""

    def _chunk_of(self, choice: _ChatChoice) -> Chunk | None:
        if choice.error is not None:
            raise refusal(error_status(choice.error), msgspec.json.encode({"error": choice.error}))
        if choice.finish_reason and self._reason is None:
            self._reason = _REASONS.get(choice.finish_reason)
            if self._reason is None:
                raise not_understood("finish_reason", choice.finish_reason)
        pieces = () if choice.delta is None else (*self._pieces(choice.delta, choice.logprobs),)
        return ChatChunk(pieces=pieces) if pieces else None

    def _pieces(self, delta: _Delta, logprobs: Logprobs | None) -> Iterator[Piece]:
        if reasoning := delta.reasoning_content or delta.reasoning or _details(delta.reasoning_details):
            yield Piece(PieceKind.REASONING, reasoning)
        tokens = () if logprobs is None else scored_tokens(logprobs)
        if isinstance(delta.content, list):
            yield from _parts(delta.content)
        elif delta.content or tokens:
            yield Piece(PieceKind.TEXT, str(delta.content or delta.refusal or ""), tokens)
        if delta.refusal and not tokens:
            yield Piece(PieceKind.TEXT, delta.refusal)
        for call in delta.tool_calls or ():
            yield self._call(call)
        if delta.function_call is not None:
            yield self._call(_Call(0, None, delta.function_call))

    def _call(self, call: _Call) -> Piece:
        """A fragment of a call. Some servers do not number them: then another id is another call."""
        if call.index is not None:
            self._last_call = call.index
        elif call.id and self._last_id and call.id != self._last_id:
            self._last_call += 1
        self._last_id = call.id or self._last_id
        if call.id and call.extra_content is not None:
            self._sign(call.id, call.extra_content)
        function = call.function or _Function()
        arguments = function.arguments
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
        return Piece(PieceKind.CALL, arguments, (), str(self._last_call), call.id or "", function.name or "")

    def end(self) -> Chunk | None:
        reason, self._reason = self._reason, None
        if reason is None:
            return None
        self.complete = True
        usage = read_usage(self._usage, _ChatUsage)
        if usage is None:
            return ChatChunk(finish=Finish(reason))
        prompt, completion = (
            usage.prompt_tokens_details or _NO_DETAILS,
            usage.completion_tokens_details or _NO_DETAILS,
        )
        finish = Finish(
            reason, None, usage.completion_tokens, completion.reasoning_tokens or 0, usage.prompt_tokens
        )
        return ChatChunk(finish=finish, cached_tokens=prompt.cached_tokens or 0)


def _details(details: Any) -> str:
    """The reasoning in OpenRouter's blocks; encrypted reasoning cannot be shown."""
    if not isinstance(details, list):
        return ""
    blocks = [block for block in details if isinstance(block, dict)]
    return "".join(str(block.get("text") or block.get("summary") or "") for block in blocks)


def _parts(content: Any) -> Iterator[Piece]:
    """The parts of Mistral's content: text, and thinking, which has parts itself."""
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "thinking":
            reasoning = "".join(piece.text for piece in _parts(part.get("thinking")))
            yield Piece(PieceKind.REASONING, reasoning)
        elif text := part.get("text"):
            yield Piece(PieceKind.TEXT, str(text))


def scored_tokens(logprobs: Logprobs) -> tuple[Token, ...]:
    """The tokens, without ids."""
    return tuple(
        Token(
            NO_ID,
            _text(scored),
            scored.logprob,
            tuple(Candidate(NO_ID, _text(top), top.logprob, _raw(top)) for top in scored.top_logprobs or ()),
            _raw(scored),
        )
        for scored in logprobs.content or logprobs.refusal or ()
    )


def _text(scored: _Candidate) -> str:
    """The whole characters of a token."""
    return scored.token if scored.bytes is None else bytes(scored.bytes).decode(errors="ignore")


def _raw(scored: _Candidate) -> bytes | None:
    """The bytes of a token that are no whole characters."""
    raw = None if scored.bytes is None else bytes(scored.bytes)
    return None if raw is None or raw.decode(errors="ignore").encode() == raw else raw


# Recognition


def recogniser(provider: Provider) -> Recognise:
    """A function that recognises this provider's server, by the models that it lists."""

    async def recognise(
        client: HttpClient, answers: Answers, settings: UpstreamSettings
    ) -> ProviderServer | None:
        models = models_of(answers)
        if not settings.kind and not any(map(provider.recognise, models.values())):
            return None
        if not settings.kind and provider is ANY and not await _takes_chats(client, next(iter(models))):
            return None
        name, model = select_model(models, settings)
        sampling = frozenset(provider.sampling)
        supported = model.get("supported_parameters")
        if isinstance(supported, list):  # OpenRouter lists the parameters of each model
            sampling &= {*supported, "max_tokens"}
        card = ModelCard(
            name=name,
            context=settings.context or _context(model),
            created=int(time.time()),
            known_as=(name,),
            capabilities=Capabilities(
                sampling=sampling | {"priority"}, chat=True, media=_media_of(model, provider.media)
            ),
        )
        return ProviderServer(provider, card, settings.parallel or DEFAULT_SLOTS)

    return recognise


def models_of(answers: Answers) -> Mapping[str, Mapping[str, Any]]:
    """The models that a server lists, by their names."""
    listing = answers.get("/v1/models")
    data = listing.get("data") if isinstance(listing, dict) else listing
    if not isinstance(data, list):
        return {}
    return {entry["id"]: entry for entry in data if isinstance(entry, dict) and "id" in entry}


def _media_of(model: Mapping[str, Any], default: frozenset[MediaKind]) -> frozenset[MediaKind]:
    """The media that a model takes according to its list entry: OpenRouter's, Antiphon's or Mistral's."""
    architecture, capabilities = model.get("architecture"), model.get("capabilities")
    kinds = (architecture if isinstance(architecture, dict) else model).get("input_modalities")
    if isinstance(kinds, list):
        return frozenset(kind for kind in MediaKind if kind in kinds and kind is not MediaKind.FILE)
    if isinstance(capabilities, dict) and "vision" in capabilities:
        return frozenset({MediaKind.IMAGE} if capabilities["vision"] else ())
    return default


def _context(model: Mapping[str, Any]) -> int:
    """The context of a model, under one of the names that lists have for it; 0 if it is missing."""
    names = ("context_length", "context_window", "max_context_length", "max_model_len")
    return next((value for name in names if isinstance(value := model.get(name), int)), 0)


def select_model(
    models: Mapping[str, Mapping[str, Any]], settings: UpstreamSettings
) -> tuple[str, Mapping[str, Any]]:
    """The selected model, and its entry. Raises EngineError if the selection is not clear."""
    if settings.tokenizer is not None:
        why = "The server of this model takes conversations only: --tokenizer has no effect on it."
        raise EngineError(f"{why} Leave it out.")
    name = settings.model
    if name is None and len(models) != 1:
        some = ", ".join([*models][:20])
        have = f"The server has {len(models)} models: {some}." if models else "The server lists no models."
        raise EngineError(f"{have} Name one with --upstream-model.")
    name = name or next(iter(models))
    # OpenRouter's have variants, which are not listed: org/model:nitro. Google lists models/NAME.
    model = models.get(name) or models.get(name.partition(":")[0]) or models.get(f"models/{name}")
    if models and model is None:
        close = [listed for listed in models if name.rpartition("/")[2] in listed][:20] or [*models][:20]
        raise EngineError(f"The server has no model '{name}'. It has {', '.join(close)}.")
    return name, model or {}


async def _takes_chats(client: HttpClient, name: str) -> bool:
    """The server takes conversations. A request without one causes no work."""
    try:
        status = (await client.request("POST", ProviderServer.path, {"model": name})).status
    except HttpError as error:
        raise unreachable(error) from error
    return status not in (404, 405)
