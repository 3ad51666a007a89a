"""The protocols that every kind of upstream server implements, and the parts that they share.

A module of a kind has a function `recognise`: given a server's answers to `PROBES`, it returns an
`UpstreamServer` with the model that is served, if the server is of that kind. Readers turn the lines of a
response into chunks. A reader that needs to look something up, such as the text of a token of which it has
only the id, raises `NotFetched`: the engine requests it from the server, and has the line read again.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct

from antiphon.core.chunks import Chunk, PromptToken
from antiphon.core.errors import (
    AntiphonError,
    EngineBusyError,
    EngineDiedError,
    EngineError,
    EngineNotReadyError,
    RequestError,
)
from antiphon.core.untrusted_json import decode_untrusted
from antiphon.engines.engine import GenerationRequest, ModelCard, NextToken, NextTokenRequest, Prompt, as_text
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.llama_request import GRAMMAR_PARAM
from antiphon.engines.redact import redacted
from antiphon.engines.shared_prompts import SharedPrompts

MODELS = "/v1/models"
PROBES = (MODELS, "/props", "/tokenizer_info", "/v1/model", "/info", "/api/tags")
"""Paths whose answers show the kind of a server, and its models."""

MAX_REFUSAL = 100_000
"""Bytes that are read of an error response."""

NO_ID = -1
"""The id of a token of which only the text is known."""

REMEMBERED = 65_536
"""Answers of a server to lookups that are remembered."""

SIGNATURES = 4096
"""Signatures of reasoning that are remembered of a server, each of some KB at most."""

MEDIA_REMEDY = "If the model takes images: start Antiphon with --upstream-kind chat."
"""The remedy for a server that takes media with conversations, but not with prompts."""

_ERROR_STATUS = re.compile(r"[45][0-9]{2}")
_TOO_LARGE = re.compile(r"input \((\d+) tokens\) is too large to process.*?batch size: (\d+)")
"""llama-server's message, with the status 500, for a text that it cannot embed."""

_TOO_LONG = (
    b"context_length",
    b"context length",
    b"`inputs` must have",
    b"`inputs` tokens + `max_new_tokens`",
)
"""Parts of the messages of servers for a prompt that is too long."""

MODEL_FAILED_STATUS = 424
"""The status with which Text Generation Inference reports that its model has failed."""

EVENT, CUMULATIVE = "upstream_line_bytes", "cumulative_line_bytes"
"""The limits for a line with the next part of an answer, and for one with all of it so far."""

Answers = Mapping[str, Any]
"""A server's answers to the probes, as JSON: of those paths that it has."""


class Post(Protocol):
    """Sends a request to a path of the server, with a body that is encoded as JSON.

    Returns the answer, decoded as a `form`. For large answers, use a form with `msgspec.Raw` in it, and
    decode that in parts, so that no call blocks for long. Raises AntiphonError.
    """

    def __call__(self, path: str, body: Any, form: Any = Any) -> Awaitable[Any]: ...


class ReadLines(Protocol):
    """Sends a request to a path of the server, with this body, and returns the lines of the answer.

    They come when the server sends them. Raises AntiphonError.
    """

    def __call__(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]: ...


CountTokens = Callable[[int, int], None]
"""Is told the number of tokens of a prompt, and how many of them the server had in its cache."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class UpstreamSettings(Struct, frozen=True):
    """The operator's settings of an upstream. None: to be found out, or not needed."""

    kind: str | None = None
    model: str | None = None
    context: int | None = None
    parallel: int | None = None
    tokenizer: str | None = None


class NotFetched(Exception):
    """`fetch` has to be awaited before this can be read."""

    def __init__(self, fetch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.fetch = fetch


class BoundedDict(dict[Key, Value]):
    """A dict of the most recent entries."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def put(self, key: Key, value: Value) -> None:
        """Remember it, in place of the oldest if there is no room."""
        while len(self) >= self._capacity:
            del self[next(iter(self))]
        self[key] = value


class Lookups(BoundedDict[Key, Value]):
    """A cache of answers; a missing one raises `NotFetched` until it was requested."""

    def __init__(self, ask: Callable[[Key], Awaitable[Value]]) -> None:
        super().__init__(REMEMBERED)
        self._ask = ask

    def __missing__(self, key: Key) -> Value:
        async def fetch() -> None:
            self.put(key, await self._ask(key))

        raise NotFetched(fetch)


class LineReader(Protocol):
    """Reads the lines of one response. `complete`: the server will send no more.

    `ended`: it has told the end of the answer, and only its usage may follow.
    `line_limit` names the limit for a line: `EVENT` or `CUMULATIVE`.
    """

    complete: bool
    ended: bool
    line_limit: str

    def read(self, line: bytes) -> Chunk | None:
        """The chunk in a line, if there is one. Raises NotFetched; AntiphonError if the line is an error."""
        ...

    def end(self) -> Chunk | None:
        """The last chunk, if it was kept until the end of the response."""
        ...


def read_usage(reported: Any, form: type[Value]) -> Value | None:
    """The numbers of tokens that a server reports; None if they cannot be: answers are whole without."""
    try:
        return msgspec.convert(reported, form, strict=False)
    except msgspec.ValidationError:
        return None


class OpenAIReader:
    """Reads events as OpenAI's APIs stream them. `finish` is held back until the usage after it has arrived.

    `decode` makes from each a struct with `choices`, `usage` and `error`.
    """

    complete = ended = False
    line_limit = EVENT

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._usage: Any = None

    def read(self, line: bytes) -> Chunk | None:
        if not line.startswith(b"data:"):
            return None  # empty, a comment, or the name of an event
        data = line[5:].strip()
        if data == b"[DONE]":
            return self.end()
        event = self._decode(data)
        if event.error is not None:
            raise refusal(self._status(event), data)
        if event.usage is not None:
            self._usage = event.usage
        if not event.choices or self.ended:  # what comes after the end is no part of it
            return None
        choice = event.choices[0]
        if type(choice.index) is int and choice.index:  # only one was asked for
            return None
        chunk = self._chunk_of(choice)
        self.ended = bool(choice.finish_reason)
        return chunk

    def _status(self, event: Any) -> int:
        """The status for an event with an error."""
        return error_status(event.error)

    def _chunk_of(self, choice: Any) -> Chunk | None:
        """The chunk in the only choice."""
        raise NotImplementedError

    def end(self) -> Chunk | None:
        raise NotImplementedError


class UpstreamServer(Protocol):
    """A server of some kind, and its model to use.

    It works on `slots` requests at a time. `kind` is its name.
    """

    @property
    def kind(self) -> str: ...

    @property
    def card(self) -> ModelCard: ...

    @property
    def slots(self) -> int: ...

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """See `Engine`; the text is short enough."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    def encode_request(self, request: GenerationRequest) -> tuple[str, bytes]:
        """The path and the body of the request.

        Raises RequestError for parameters that the server would ignore, or fail on.
        """
        ...

    def reader(self, request: GenerationRequest) -> LineReader:
        """A reader of the response."""
        ...


@runtime_checkable
class PromptSharingServer(Protocol):
    """A server that uses what it has computed of a prompt only after the answer: see `shared_prompts`."""

    prompts: SharedPrompts


@runtime_checkable
class SlotServer(Protocol):
    """A server that keeps each generation in a slot of its own, all together with `cells` tokens.

    It does not report how many of them are in use, but how many tokens of each prompt were cached.
    """

    cells: int


class ChatServer:
    """The common methods of servers that take conversations only.

    `parameter_support` says, for people, how parameters are passed on that only some servers have: None for
    those that are refused.
    """

    def __init__(
        self, kind: str, card: ModelCard, slots: int, parameter_support: Mapping[str, str | None]
    ) -> None:
        self.kind = kind
        self.card = card
        self.slots = slots
        self.parameter_support = parameter_support

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """Raises RequestError: tokens are the server's own."""
        raise no_tokens("prompt")

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The same."""
        raise no_tokens("tokens")


def no_tokens(param: str) -> RequestError:
    """The error for clients that request tokens of a model that takes conversations only."""
    message = (
        "This model is behind a server that takes conversations only: there are no tokens and no prompts of "
        "it to see or to give. Use Chat Completions, Responses or Messages."
    )
    return RequestError(message, param=param, code="conversations_only")


@runtime_checkable
class PromptScoringServer(Protocol):
    """The method of a server whose card names `prompt_logprobs`."""

    async def score_prompt(self, post: Post, request: GenerationRequest) -> tuple[PromptToken, ...]: ...


@runtime_checkable
class BeamSearchingServer(Protocol):
    """The method of a server whose card names `beam_width`."""

    async def search(self, post: Post, request: GenerationRequest) -> Sequence[Sequence[Chunk]]: ...


@runtime_checkable
class SlotScoringServer(Protocol):
    """The method of a server that scores next tokens in one slot: see `llama_next_token`."""

    async def score_in_slot(
        self, request: NextTokenRequest, lines: ReadLines, count: CountTokens
    ) -> tuple[NextToken, ...]: ...


@runtime_checkable
class NextTokenScoringServer(Protocol):
    """The method of a server that scores given tokens."""

    async def score_next(self, post: Post, request: NextTokenRequest) -> tuple[NextToken, ...]: ...


Recognise = Callable[[HttpClient, Answers, UpstreamSettings], Awaitable[UpstreamServer | None]]


def texts_around_media(prompt: Prompt, card: ModelCard) -> list[str]:
    """The texts around the media of a prompt, for a server that reads it as text.

    The server itself adds the token that the model needs before any text.
    """
    texts = [*map(as_text, prompt.around)]
    if card.opening is not None:
        texts[0] = texts[0].removeprefix(card.bos)
    return texts


async def ask(client: HttpClient, path: str, body: Any, form: Any = Any) -> Any:
    """The server's answer, read as a `form`. Raises AntiphonError."""
    try:
        response = await client.request("POST", path, body)
    except HttpError as error:
        raise unreachable(error) from error
    if response.status != 200:
        raise refusal(response.status, response.body)
    try:
        return decode_untrusted(response.body, form, strict=False)
    except msgspec.ValidationError as error:
        raise unexpected() from error
    except msgspec.DecodeError as error:
        raise EngineError("The server of the model does not answer in JSON.") from error


def unexpected() -> EngineError:
    """The error of an answer that cannot be read."""
    return EngineError("The server of the model does not answer as expected. See the log of this server.")


def unreachable(error: HttpError) -> AntiphonError:
    """The error of a server that failed. The reason may name machines of the operator."""
    failure = EngineNotReadyError("The server of the model cannot be reached. Try again in a moment.")
    failure.__cause__ = error
    return failure


def broken(error: HttpError | None) -> AntiphonError:
    """The error of a response that ended in the middle."""
    failure = EngineDiedError("The server of the model stopped in the middle of the answer. Try again.")
    failure.__cause__ = error or HttpError("the stream ended without an end")
    return failure


def refusal(status: int, body: bytes, retry_after: float | None = None) -> AntiphonError:
    """The error for an error response: with the server's message, if it blames the request.

    `retry_after` is in seconds.
    """
    body = body[:MAX_REFUSAL]
    failure = _refusal(status, body)
    failure.retry_after = retry_after
    failure.__cause__ = HttpError(f"{status}: {redacted(body.decode(errors='replace'))}", status)
    return failure


def not_understood(what: str, value: str) -> EngineError:
    """The error of a value that no such server is known to send."""
    failure = EngineError()
    failure.__cause__ = HttpError(f"its {what} is {redacted(value)}")
    return failure


def error_status(error: Any) -> int:
    """The status for an error in a stream."""
    code = error.get("code") if isinstance(error, dict) else None
    return int(str(code)) if _ERROR_STATUS.fullmatch(str(code)) else 500


def _refusal(status: int, body: bytes) -> AntiphonError:
    if status in (401, 403):
        return EngineError("The server of the model refuses the key of this server.")
    if status in (402, 404):  # no money, no such model or path: the operator has to act
        return EngineError(
            "The server of the model does not have this model, or not this path. See the log of this server."
        )
    if status == 429:
        return EngineBusyError()
    if status in (408, 502, 503, 504, 529):
        return EngineNotReadyError()
    message = _message(body)
    blamed = (400 <= status < 500 and status != MODEL_FAILED_STATUS) or _TOO_LARGE.match(message)
    return _refusal_of(message, body) if blamed and message else EngineError()


def _refusal_of(message: str, body: bytes) -> RequestError:
    """The error of a request that the server refuses."""
    if "parse grammar" in message:
        return RequestError("The grammar is not valid.", param=GRAMMAR_PARAM)
    match = _TOO_LARGE.match(message)
    if match is not None:
        message = f"it has {match[1]} tokens, and the model reads at most {match[2]} at a time"
    too_long = match is not None or any(words in body for words in _TOO_LONG)
    return RequestError(
        f"The server of the model refuses this: {redacted(message).rstrip('.')}.",
        param="conversation" if too_long else None,
        code="context_length_exceeded" if too_long else None,
    )


def _message(body: bytes) -> str:
    """The message of an error, from any of the usual places."""
    try:
        value = decode_untrusted(body)
    except msgspec.DecodeError:
        return ""
    while isinstance(value, dict | list):
        if isinstance(value, list):  # of problems, as FastAPI has them
            value = value[0] if value else None
        else:
            value = value.get("error") or value.get("message") or value.get("detail") or value.get("msg")
    return value if isinstance(value, str) else ""
