"""POST /v1/responses, and the endpoints of a stored response."""

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.framing import DONE, event_head, event_type, frame, obfuscate
from antiphon.apis.responses.resource import TokenCounts
from antiphon.apis.responses.schema import CompactRequest, CountTokens, CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.app.app import App
from antiphon.app.responses import compaction, history, stored
from antiphon.app.responses.create import as_kept, begin, response_id
from antiphon.config import Settings
from antiphon.core.errors import RequestError
from antiphon.core.plain_tokens import DeltaEncoder, NumberedDeltas
from antiphon.http.delivery import EventStream, Framing, FullAnswer
from antiphon.http.request import (
    app_of,
    json_response,
    owner_of,
    query_of,
    read_request,
    request_id_of,
)
from antiphon.run.drive import Driver

Answer = FullAnswer | EventStream | Response

_IN_PROGRESS = b"response.in_progress"
_STATES = frozenset({_IN_PROGRESS, b"response.queued"})
"""The types of events that say only how far a response is."""


class ResponseEvents(EventStream):
    """The stream of a response.

    Clients such as Codex give up a stream that has no events for minutes, whatever comments it has, and begin
    it again. So a response whose prompt is computed for long begins before its first token, and then says
    again that it is in progress.
    """

    def __init__(
        self, driver: Driver, projection: ResponseProjection, settings: Settings, framing: Framing
    ) -> None:
        super().__init__(driver, settings, framing, after=DONE)
        self._projection = projection

    def _keep_alive(self) -> None:
        if self._driver.holding or not self._settings.keep_alive_events:
            super()._keep_alive()
        elif lines := events_of_waiting(self._driver, self._projection):
            if self._record is not None:
                self._record.give_up()  # they are numbered
            self._outlet.write(self._framing.frame_all(lines))


def events_of_waiting(driver: Driver, projection: ResponseProjection) -> list[bytes]:
    """What a client that waits for the next event is sent. A response that has not begun begins."""
    if driver.holding:  # what was made last is not sent yet
        return []
    if not driver.has_begun:
        driver.announce()
        return []
    return [projection.in_progress()]


class LogStream(EventStream):
    """The events of a stored response. It is known to exist, so the stream begins at once."""

    def __init__(self, driver: Driver, settings: Settings, framing: Framing) -> None:
        super().__init__(driver, settings, framing, after=DONE)
        self._state = b""
        self._newest = b""

    def attach(self, driver: Driver) -> None:
        super().attach(driver)
        self.started = True
        self._outlet.write(self._api.keep_alive)

    def write(self, lines: list[bytes]) -> None:
        if not self._state or event_type(self._state) != _IN_PROGRESS:
            states = (line for line in reversed(lines) if event_type(line) in _STATES)
            self._state = next(states, self._state)
        self._newest = lines[-1] if lines else self._newest
        super().write(lines)

    def _keep_alive(self) -> None:
        """A reader who begins later than the response gets comments."""
        if not (self._state and self._settings.keep_alive_events):
            super()._keep_alive()
            return
        event = msgspec.json.decode(self._state)
        event["sequence_number"] = msgspec.json.decode(self._newest)["sequence_number"]
        self._outlet.write(self._framing.frame_all([msgspec.json.encode(event)]))


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
            return LogStream(log, app.settings, _framing(obfuscated))
        return json_response(creation.projection.body())
    driver = creation.driver(streamed=bool(wire.stream))
    if wire.stream:
        return ResponseEvents(driver, creation.projection, app.settings, _framing(obfuscated))
    return FullAnswer(driver, app.settings)


async def retrieve(request: Request) -> Answer:
    """The response in its current state, or its events from `starting_after` on."""
    app, target, query = app_of(request), _target(request), query_of(request)
    after = query.number("starting_after", -1, minimum=0)
    if query.flag("stream"):
        driver = await stored.events(*target, after)
        return LogStream(driver, app.settings, _framing(query.flag("include_obfuscation")))
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
    return FullAnswer(await compaction.compact(app, wire, owner_of(request)), app.settings)


def _framing(obfuscated: bool) -> Framing:
    """The functions that make server-sent events from payloads."""
    return _PADDED if obfuscated else _TYPED


def _typed(encode: DeltaEncoder) -> DeltaEncoder:
    """The encoder of server-sent events: deltas of one item have one type."""
    if isinstance(encode, NumberedDeltas):
        return encode.between(event_head(encode.frame.head), b"\n\n")
    return lambda text, tokens: frame([encode(text, tokens)])


def _padded(encode: DeltaEncoder) -> DeltaEncoder:
    return lambda text, tokens: frame(obfuscate([encode(text, tokens)]))


_TYPED = Framing(frame, _typed)
_PADDED = Framing(lambda payloads: frame(obfuscate(payloads)), _padded)


def _target(request: Request) -> tuple[App, str, str]:
    """The app, the owner and the id of the response."""
    return app_of(request), owner_of(request), request.path_params["response_id"]
