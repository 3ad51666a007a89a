"""Servers with Anthropic's Messages API, which take conversations only. See `chat.py` for the others.

Reasoning is sent back with the signature that the server has made, because it ignores unsigned reasoning.
The signatures are remembered here, by a hash of the reasoning. The server demands them before calls if it is
to reason; so if they are not known any more, it is not asked to reason after the results of tools.
"""

import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, Piece, PieceKind, TokenCount
from antiphon.core.constraint import JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind, MediaPart, object_in
from antiphon.core.turn import CallMode, Turn
from antiphon.engines.engine import Capabilities, GenerationRequest, ModelCard
from antiphon.engines.http_client import HttpClient
from antiphon.engines.upstreams.chat import DEFAULT_SLOTS, models_of, select_model
from antiphon.engines.upstreams.kind import (
    EVENT,
    SIGNATURES,
    Answers,
    BoundedDict,
    ChatServer,
    UpstreamSettings,
    not_understood,
    read_usage,
    refusal,
)

NAME = "anthropic"

VERSION = "2023-06-01"

MAX_TOKENS = 8192
"""The `max_tokens` of requests without a limit, for a model whose own limit is unknown: the API requires one.
"""

SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")

_REASONS = {
    "end_turn": FinishReason.STOP,
    "tool_use": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "pause_turn": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_PARAMETER_SUPPORT: Mapping[str, str | None] = {
    "json_schema": "as output_config.format; checked afterwards, and faults listed in `unmet`",
    "reasoning_effort": "as output_config.effort, with thinking",
    "thinking": 'as {"thinking":{"type":"adaptive"}}',
    "thinking_token_budget": "as thinking.budget_tokens",
    "verbosity": None,
    "earlier reasoning": "sent with its signature, while that is remembered",
}


def headers(key: str | None) -> dict[str, str]:
    """The headers of each request."""
    return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}


class MessagesServer(ChatServer):
    """A server with the Messages API, and its model, whose answers have at most this number of tokens."""

    path = "/v1/messages"

    def __init__(self, card: ModelCard, slots: int, max_tokens: int) -> None:
        super().__init__(NAME, card, slots, _PARAMETER_SUPPORT)
        self._max_tokens = max_tokens
        self._signatures: Signatures = BoundedDict(SIGNATURES)

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        """Stop strings are not sent: the decoder finds them."""
        conversation, sampling = request.conversation, request.sampling
        assert conversation is not None
        turn = conversation.turn
        system, messages = _messages(conversation.messages, iter(request.prompt.media), self._signatures)
        thinking = _thinking(turn)
        if not thinking or _unsigned(messages):
            thinking = {}
            messages = [bare for message in messages if (bare := _without_reasoning(message))["content"]]
        body = {
            "model": self.card.name,
            "messages": messages,
            "stream": True,
            **({"system": system} if system else {}),
            **{name: value for name in SAMPLING if (value := getattr(sampling, name)) is not None},
            **_tools(turn),
            **_output(turn),
            **thinking,
        }
        body.setdefault("max_tokens", min(self._max_tokens, request.max_tokens))
        return self.path, msgspec.json.encode(body)

    def reader(self, request: GenerationRequest) -> "MessagesReader":
        return MessagesReader(self._signatures)


def _messages(
    messages: Sequence[Mapping[str, Any]], media: Iterator[MediaPart], signatures: "Signatures"
) -> tuple[str, list[dict[str, Any]]]:
    """The instructions before the first message, and the messages, whose roles alternate."""
    system: list[str] = []
    sent: list[dict[str, Any]] = []
    for message in messages:
        instructs = message["role"] in ("system", "developer")
        if instructs and not sent and isinstance(message["content"], str):
            system.append(message["content"])
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if not sent or sent[-1]["role"] != role:
            sent.append({"role": role, "content": []})
        sent[-1]["content"] += _signed_reasoning(message, signatures)
        sent[-1]["content"] += _blocks(message, media)
    return "\n\n".join(system), [message for message in sent if message["content"]]


def _signed_reasoning(message: Mapping[str, Any], signatures: "Signatures") -> Iterator[dict[str, Any]]:
    """The blocks of thinking that a message begins with, as they were received."""
    text = message.get("reasoning_content", "")
    for size, signature in signatures.get(_key(text), ()):
        if size is None:
            yield {"type": "redacted_thinking", "data": signature}
        else:
            yield {"type": "thinking", "thinking": text[:size], "signature": signature}
            text = text[size:]


def _key(reasoning: str) -> bytes:
    return sha256(reasoning.encode()).digest()


_REASONING_TYPES = ("thinking", "redacted_thinking")


def _unsigned(messages: Sequence[Mapping[str, Any]]) -> bool:
    """There are results of calls at the end, and no thinking before the calls."""
    *before, last = messages or [{"content": []}]
    if not any(block["type"] == "tool_result" for block in last["content"]):
        return False
    return not before or before[-1]["content"][0]["type"] not in _REASONING_TYPES


def _without_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **message,
        "content": [block for block in message["content"] if block["type"] not in _REASONING_TYPES],
    }


def _blocks(message: Mapping[str, Any], media: Iterator[MediaPart]) -> Iterator[dict[str, Any]]:
    content = message["content"]
    if message["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": _id(message["tool_call_id"]), "content": content}
    elif isinstance(content, list):
        yield from (part if "text" in part else _image(next(media)) for part in content)
    elif content and content.strip():  # the API refuses texts of white space only
        yield {"type": "text", "text": content}
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = object_in(function["arguments"]) or {}
        yield {"type": "tool_use", "id": _id(call["id"]), "name": function["name"], "input": arguments}


def _image(part: MediaPart) -> dict[str, Any]:
    source = {"type": "base64", "media_type": part.media_type, "data": b64encode(part.data).decode()}
    return {"type": "image", "source": source}


def _id(call_id: str) -> str:
    """The id, restricted to the characters that the API allows."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _tools(turn: Turn) -> dict[str, Any]:
    """The tools that may be called, and how. Those that may not are left out."""
    choice = turn.tool_choice
    tools = [tool for tool in turn.known_tools if choice.names is None or tool.name in choice.names]
    if not tools:
        return {}
    sent = [
        {
            "name": tool.name,
            **({"description": tool.description} if tool.description else {}),
            "input_schema": {"type": "object", **tool.parameters},
        }
        for tool in tools
    ]
    tool_choice: dict[str, Any] = {"type": "auto"}
    if choice.calling is CallMode.NONE:
        return {"tools": sent, "tool_choice": {"type": "none"}}
    if choice.calling is CallMode.REQUIRED:
        one = choice.named and len(tools) == 1
        tool_choice = {"type": "tool", "name": tools[0].name} if one else {"type": "any"}
    if not choice.parallel:
        tool_choice["disable_parallel_tool_use"] = True
    return {"tools": sent, "tool_choice": tool_choice}


def _output(turn: Turn) -> dict[str, Any]:
    """The form and the effort of the answer. Raises RequestError for a form that the API does not have."""
    config: dict[str, Any] = {}
    match turn.format:
        case None:
            pass
        case JsonSchema(schema):
            config["format"] = {"type": "json_schema", "schema": schema}
        case _:
            message = (
                "As the format of an answer, the server of this model supports only JSON "
                "Schemas. Use one, or leave it out."
            )
            raise RequestError(message, param="format")
    if (effort := turn.variables.get("reasoning_effort")) not in (None, "none"):
        config["effort"] = effort
    return {"output_config": config} if config else {}


def _thinking(turn: Turn) -> dict[str, Any]:
    """Whether to think, and how much. Raises RequestError for variables that have no meaning here."""
    variables = {**turn.variables}
    effort = variables.pop("reasoning_effort", None)
    reasons = [variables.pop("enable_thinking", None), variables.pop("thinking", None)]
    if variables:
        message = (
            "The server of this model does not support variables of the chat template: "
            f"{', '.join(variables)}. Leave them out."
        )
        raise RequestError(message, param="chat_template_kwargs")
    if turn.reasoning_limit is not None:
        return {"thinking": {"type": "enabled", "budget_tokens": turn.reasoning_limit}}
    thinks = any(reasons) or effort not in (None, "none")
    return {"thinking": {"type": "adaptive"}} if thinks else {}


# What is received


class _Block(Struct, frozen=True):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str | None = None
    thinking: str | None = None
    data: str | None = None


class _Delta(Struct, frozen=True):
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _OutputTokensDetails(Struct, frozen=True):
    thinking_tokens: TokenCount | None = None


class _MessagesUsage(Struct, frozen=True):
    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None
    output_tokens_details: _OutputTokensDetails | None = None


class _Message(Struct, frozen=True):
    usage: Any = None


class _MessagesEvent(Struct, frozen=True):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_MessagesEvent).decode


Signature = tuple[int | None, str]
"""Of a block of thinking: its number of characters, None if they are hidden, and its signature."""

Signatures = BoundedDict[bytes, tuple[Signature, ...]]
"""The signatures of a piece of reasoning, block by block, by its hash."""


class MessagesReader:
    """Reads the events of a stream. The signatures of reasoning are put into `signatures`."""

    complete = ended = False
    line_limit = EVENT

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._reasoning: list[str] = []  # since something else was written
        self._signed: list[Signature] = []
        self._size = 0  # of the block
        self._reason: FinishReason | None = None
        self._usage: dict[str, int] = {}  # the latest number of each kind

    def read(self, line: bytes) -> Chunk | None:
        if not line.startswith(b"data:"):
            return None  # empty, or the name of an event, which the event has, too
        event = _decode(line[5:])
        if event.type == "error":
            kind = event.error.get("type") if isinstance(event.error, dict) else None
            raise refusal(_STATUS.get(str(kind), 500), line[5:])
        if event.message is not None and event.message.usage is not None:
            self._count(event.message.usage)
        if event.usage is not None:
            self._count(event.usage)
        if event.type == "message_stop":
            return self.end()
        return None if self.ended else self._chunk(event)

    def _chunk(self, event: _MessagesEvent) -> Chunk | None:
        if event.delta is not None and event.delta.stop_reason is not None:
            self._reason = _REASONS.get(event.delta.stop_reason)
            if self._reason is None:
                raise not_understood("stop_reason", event.delta.stop_reason)
            self.ended = True
        piece = _piece(event)
        self._remember(event, piece)
        return None if piece is None else ChatChunk(pieces=(piece,))

    def _remember(self, event: _MessagesEvent, piece: Piece | None) -> None:
        """Remember reasoning, and its signatures. A block of another type starts a new piece."""
        block, delta = event.content_block, event.delta
        if block is not None:
            self._size = 0
            if block.type not in _REASONING_TYPES:
                self._reasoning, self._signed = [], []
        if piece is not None and piece.kind is PieceKind.REASONING:
            self._reasoning.append(piece.text)
            self._size += len(piece.text)
        if delta is not None and delta.signature:
            self._signed.append((self._size, delta.signature))
        elif block is not None and block.data:
            self._signed.append((None, block.data))
        else:
            return
        if self._reasoning:
            self._signatures.put(_key("".join(self._reasoning)), (*self._signed,))

    def _count(self, reported: Any) -> None:
        usage = read_usage(reported, _MessagesUsage)
        if usage is None:
            return
        reasoning = usage.output_tokens_details and usage.output_tokens_details.thinking_tokens
        counts = {**msgspec.structs.asdict(usage), "output_tokens_details": reasoning}
        self._usage |= {name: count for name, count in counts.items() if count is not None}

    def end(self) -> Chunk | None:
        if self._reason is None:
            return None
        usage, self.complete = self._usage, True
        cached = usage.get("cache_read_input_tokens", 0)
        prompt = usage.get("input_tokens", 0) + usage.get("cache_creation_input_tokens", 0) + cached
        output, reasoning = usage.get("output_tokens"), usage.get("output_tokens_details", 0)
        return ChatChunk(finish=Finish(self._reason, None, output, reasoning, prompt), cached_tokens=cached)


def _piece(event: _MessagesEvent) -> Piece | None:
    block, delta, key = event.content_block, event.delta, str(event.index)
    if block is not None and block.type == "tool_use":
        return Piece(PieceKind.CALL, "", (), key, block.id, block.name)
    part = block or delta
    if part is None:
        return None
    if part.text:
        return Piece(PieceKind.TEXT, part.text)
    if part.thinking:
        return Piece(PieceKind.REASONING, part.thinking)
    return Piece(PieceKind.CALL, delta.partial_json, (), key) if delta and delta.partial_json else None


# Recognition


async def recognise(
    client: HttpClient, answers: Answers, settings: UpstreamSettings
) -> MessagesServer | None:
    """The server, if it was configured as this kind: without its headers it does not answer probes."""
    if settings.kind != NAME:
        return None
    name, model = select_model(models_of(answers), settings)
    card = ModelCard(
        name=name,
        context=settings.context or model.get("max_input_tokens") or 0,
        created=int(time.time()),
        known_as=(name,),
        capabilities=Capabilities(
            sampling=frozenset({*SAMPLING, "priority"}), chat=True, media=frozenset({MediaKind.IMAGE})
        ),
    )
    return MessagesServer(card, settings.parallel or DEFAULT_SLOTS, model.get("max_tokens") or MAX_TOKENS)
