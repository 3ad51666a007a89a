"""POST /v1/responses, and the endpoints of a stored response."""

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.framing import DONE, event_head, frame, obfuscate
from antiphon.apis.responses.resource import TokenCounts
from antiphon.apis.responses.schema import CompactRequest, CountTokens, CreateResponse
from antiphon.app.app import App
from antiphon.app.responses import compaction, history, stored
from antiphon.app.responses.create import as_kept, begin, response_id
from antiphon.core.chunks import Token
from antiphon.core.errors import RequestError
from antiphon.http.delivery import EventStream, Framing, FullAnswer, LogStream
from antiphon.http.request import (
    app_of,
    json_response,
    owner_of,
    query_of,
    read_request,
    request_id_of,
)
from antiphon.run.drive import DeltaEncoder

Answer = FullAnswer | EventStream | Response


async def create(request: Request) -> Answer:
    """Create a response, answered now or in the background."""
    app, owner = app_of(request), owner_of(request)
    wire = as_kept(app, await read_request(request, CreateResponse))
    answer = response_id(wire, request_id_of(request))
    creation = await begin(app, wire, owner, answer)
    obfuscated = bool(wire.stream_options and wire.stream_options.include_obfuscation)
    if wire.background:
        await creation.queue()
        if wire.stream:
            log = stored.log_driver(app, owner, creation.id)
            return LogStream(log, app.options, _framing(obfuscated), after=DONE)
        return json_response(creation.projection.body())
    driver = creation.driver(streamed=bool(wire.stream))
    if wire.stream:
        return EventStream(driver, app.options, _framing(obfuscated), after=DONE)
    return FullAnswer(driver, app.options)


async def retrieve(request: Request) -> Answer:
    """The response in its current state, or its events from `starting_after` on."""
    app, target, query = app_of(request), _target(request), query_of(request)
    after = query.number("starting_after", -1, least=0)
    if query.flag("stream"):
        driver = await stored.events(*target, after)
        return LogStream(driver, app.options, _framing(query.flag("include_obfuscation")), after=DONE)
    if after >= 0:
        raise RequestError("starting_after requires stream=true.", param="starting_after")
    return json_response(await stored.retrieve(*target))


async def background_filter(request: Request) -> bool | None:
    """The filter of a list: responses in the `background`, the others, or all."""
    query = query_of(request)
    return None if query.text("background") is None else query.flag("background")


async def count_input_tokens(request: Request) -> Response:
    """The number of tokens of a request's prompt, without a limit."""
    wire = await read_request(request, CountTokens)
    size = await history.count_input_tokens(app_of(request), wire, owner_of(request))
    return json_response(msgspec.json.encode(TokenCounts(size.tokens, size.estimated or UNSET)))


async def compact(request: Request) -> FullAnswer:
    """Make a summary that replaces a conversation."""
    app, wire = app_of(request), await read_request(request, CompactRequest)
    return FullAnswer(await compaction.compact(app, wire, owner_of(request)), app.options)


def _framing(obfuscated: bool) -> Framing:
    """The functions that make server-sent events from payloads."""
    return _PADDED if obfuscated else _TYPED


class _TypedDeltas:
    """Encodes the deltas of one item as server-sent events: they have one type, which is looked up once."""

    __slots__ = ("_encode", "_head")

    def __init__(self, encode: DeltaEncoder) -> None:
        self._encode = encode
        self._head = b""

    def encode(self, text: str, tokens: tuple[Token, ...]) -> bytes:
        """See `DeltaEncoder`."""
        encode = self._encode
        payload = encode(text, tokens)
        if not self._head:
            self._head = event_head(payload)
        return b"".join((self._head, payload, b"\n\n"))


def _padded_deltas(encode: DeltaEncoder) -> DeltaEncoder:
    return lambda text, tokens: frame(obfuscate([encode(text, tokens)]))


_TYPED = Framing(frame, lambda encode: _TypedDeltas(encode).encode)
_PADDED = Framing(lambda payloads: frame(obfuscate(payloads)), _padded_deltas)


def _target(request: Request) -> tuple[App, str, str]:
    """The app, the owner and the id of the response."""
    return app_of(request), owner_of(request), request.path_params["response_id"]
