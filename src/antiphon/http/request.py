"""What handlers take from a request, and their plain answers. Bodies are JSON, under a limit.

Type errors become a 400 that names the parameter. `handler` makes the handler of a use case that needs no
more of HTTP than this, in the table of routes.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar, cast

import structlog
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from antiphon.apis.api import OPENAI, Api
from antiphon.apis.fields import ParameterNames
from antiphon.apis.wire import decode, decode_request, unknown_members
from antiphon.app.app import App
from antiphon.app.ids import MAX_REQUEST_ID
from antiphon.core.accounts import Account
from antiphon.core.encodings import decoded_parts
from antiphon.core.errors import BodyTooLargeError, MalformedBodyError, MediaTypeError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.core.observation import observed
from antiphon.run.endings import ClientLeftError
from antiphon.store.records import Paging

log = structlog.get_logger(__name__)

T = TypeVar("T")
Order = Literal["asc", "desc"]
Reader = Callable[[Request], Awaitable[object]]
Handler = Callable[[Request], Awaitable[Response]]

REQUEST_ID = b"x-request-id"
"""The header with the id of a request."""
MOST_ON_PAGE = 100
"""The most entries on a page of a list, as in OpenAI's API."""
LONG_BODY = 64 * 1024
"""Bodies of at least this number of bytes are decoded in a thread."""
MOST_NAMES, LONGEST_NAME = 20, 100
"""The most unknown names in a log line, and characters of each."""
WIDENING = frozenset({"include", "beta", "api-version", "_"})
"""Query parameters of lists that clients send, and that do not leave anything out of them."""
MOST_DIGITS = 18
"""Digits of a number that every database holds."""

# `requests` writes True, httpx true.
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def app_of(request: HTTPConnection) -> App:
    """The app of the application that received the request."""
    app: App = request.scope["app"]
    return app


def owner_of(request: HTTPConnection) -> str:
    """The identity that a request acts as."""
    return account_of(request).owner


def account_of(request: HTTPConnection) -> Account:
    """The account of a request."""
    account: Account = request.scope["state"]["account"]
    return account


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The header of this name, which is in lower case; the first, if there are several."""
    for header, value in scope["headers"]:
        if header == name:
            return cast(bytes, value)
    return None


def request_id_of(request: HTTPConnection) -> str | None:
    """The id that the client gave to its request in a header, if it is one that can be used."""
    return given_id(request.scope)


def given_id(scope: Scope) -> str | None:
    """The client's id of its request, if it is one that answers may have."""
    given = header_of(scope, REQUEST_ID)
    if given and len(given) <= MAX_REQUEST_ID and given.isascii() and (text := given.decode()).isprintable():
        return text
    return None


def handler(use_case: Callable[..., Awaitable[bytes]], *readers: Reader) -> Handler:
    """A handler for a use case that returns a JSON body.

    Its arguments are the app, the owner, the ids in the path, and the values of the readers.
    """

    async def handle(request: Request) -> Response:
        read = [await reader(request) for reader in readers]
        _check_ignored(sorted(request.query_params.keys() - query_names(request)), read)
        ids = request.path_params.values()
        return json_response(await use_case(app_of(request), owner_of(request), *ids, *read))

    handle.__doc__ = use_case.__doc__
    return handle


def _check_ignored(names: Sequence[str], read: Sequence[object]) -> None:
    """Log query parameters that nobody reads. Raises RequestError for those of a list: it would be longer."""
    if any(isinstance(value, Paging) for value in read) and (others := [*filter(_may_narrow, names)]):
        message = f"This list has no parameter '{others[0][:LONGEST_NAME]}'. Leave it out."
        raise RequestError(message, param=others[0][:LONGEST_NAME])
    log_ignored(names)


def _may_narrow(name: str) -> bool:
    return name.removesuffix("[]") not in WIDENING


def body(type_: type[object], limit: str = "body_bytes") -> Reader:
    """Reads the body as `read_body` does."""
    return lambda request: read_body(request, type_, limit)


def paging(order: Order = "desc") -> Reader:
    """Reads which part of a list is wanted, by default in this order. Raises RequestError."""

    async def read(request: Request) -> Paging:
        return query_of(request).paging(order)

    return read


async def read_body(request: Request, type_: type[T], limit: str = "body_bytes") -> T:
    """A body that is not a request for an answer, up to a limit of bytes. Raises RequestError."""
    body, app = await read_json(request, limit), app_of(request)

    def work() -> tuple[T, list[str]]:
        return decode(body, type_, app.limits), unknown_members(body, type_)

    wire, unknown = await decoded(app, body, work)
    log_ignored(unknown)
    return wire


async def decoded(app: App, body: bytes, work: Callable[[], T]) -> T:
    """The decoded body; a long one is decoded in a thread."""
    return work() if len(body) < LONG_BODY else await app.large.run(work)


async def read_json(request: Request, limit: str = "body_bytes", api: Api = OPENAI) -> bytes:
    """The body of a request that must be JSON. Raises RequestError."""
    media_type = header_of(request.scope, b"content-type")
    if media_type is not None and media_type != b"application/json" and not api.any_content_type:
        media_type = media_type.partition(b";")[0].strip().lower()
        if media_type != b"application/json" and not media_type.endswith(b"+json"):
            raise MediaTypeError
    body = b"".join([part async for part in body_of(request, limit)])
    if not body:
        raise MalformedBodyError("The request has no body. Send a JSON object.")
    return body


def body_of(request: Request, limit: str) -> AsyncGenerator[bytes, None]:
    """The body in parts, decompressed, up to a limit of bytes. Raises RequestError."""
    maximum: int = getattr(app_of(request).limits, limit)
    # Refused before it is read, if its length is known; that of a chunked body is not.
    announced = header_of(request.scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > maximum:
        raise too_large(limit, maximum)
    parts = _received(request.receive, _Counter(limit, maximum))
    if header_of(request.scope, b"content-encoding") is None:
        return parts
    fields = [value for name, value in request.scope["headers"] if name == b"content-encoding"]
    return decoded_parts(parts, fields, lambda: _Counter(limit, maximum).count)


class _Counter:
    """Counts the bytes of a body."""

    def __init__(self, limit: str, maximum: int) -> None:
        self._limit = limit
        self._maximum = self._left = maximum

    def count(self, part: bytes) -> bytes:
        """The part. Raises BodyTooLargeError if there are more than `maximum`, the value of the `limit`."""
        self._left -= len(part)
        if self._left < 0:
            raise too_large(self._limit, self._maximum)
        return part


async def _received(receive: Receive, counter: _Counter) -> AsyncGenerator[bytes, None]:
    """The parts that come. Raises ClientDisconnect, and BodyTooLargeError."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield counter.count(message.get("body", b""))
        more = message.get("more_body", False)


def too_large(limit: str, maximum: int) -> BodyTooLargeError:
    """The error of a body that has more bytes than a limit allows."""
    message = f"The request body has more than {maximum} bytes, the limit '{limit}' of this server."
    return BodyTooLargeError(message, code=LIMIT_EXCEEDED)


async def read_request(request: Request, type_: type[T], limit: str = "body_bytes", api: Api = OPENAI) -> T:
    """The body as a request for an answer, up to a limit of bytes. Raises RequestError."""
    return await decode_body(request, await read_json(request, limit, api), type_, api)


async def decode_body(connection: HTTPConnection, body: bytes, type_: type[T], api: Api = OPENAI) -> T:
    """A request for an answer; its unknown parameters are logged. Raises RequestError.

    The `names` in its state are its own names of parameters, for errors.
    """
    connection.scope["state"]["names"] = names = ParameterNames({**api.parameters})
    app = app_of(connection)
    models, limits = app.models, app.limits
    model = None if api.model_in_path is None else connection.path_params[api.model_in_path]
    work = partial(decode_request, body, type_, names, models.default_name, models.default, limits, model)
    wire = await decoded(app, body, work)
    observed().model = getattr(wire, "model", None)
    log_ignored(names.ignored)
    return wire


def log_ignored(names: Sequence[str]) -> None:
    """Log the names of ignored parameters, because nothing else shows a misspelt name."""
    if names:
        log.info("unknown parameters ignored", names=[name[:LONGEST_NAME] for name in names[:MOST_NAMES]])


def query_names(request: Request) -> set[str]:
    """The names of the query parameters of a request that the route has read."""
    names: set[str] = request.scope.setdefault("state", {}).setdefault("query_names", set())
    return names


def query_of(request: Request) -> "Query":
    """The query parameters of a request."""
    return Query(request.query_params, query_names(request))


class Query:
    """The query parameters of one request. `names` collects those that are read."""

    def __init__(self, values: Mapping[str, str], names: set[str] | None = None) -> None:
        self._values = values
        self._names = set() if names is None else names

    def _get(self, name: str) -> str | None:
        self._names.add(name)
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """The parameter as text; None if it is missing or empty."""
        value = self._get(name)
        if value and "\0" in value:  # PostgreSQL refuses texts with it
            raise _wrong(name, "Leave U+0000 out: it cannot be stored.")
        return value or None

    def flag(self, name: str) -> bool:
        """True or false; false if it is missing."""
        value = (self._get(name) or "false").lower()
        if value not in _BOOLEANS:
            raise _wrong(name, "Use true or false.")
        return _BOOLEANS[value]

    def number(self, name: str, default: int, *, minimum: int, maximum: int | None = None) -> int:
        """A whole number between `minimum` and `maximum`."""
        value = self._get(name)
        if value is None:
            return default
        number = int(value) if value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS else -1
        if number < minimum or (maximum and number > maximum):
            to = f" to {maximum}" if maximum else " on"
            raise _wrong(name, f"Use a number from {minimum}{to}.")
        return number

    def paging(
        self, order: Order = "desc", limit: int = Paging().limit, maximum: int = MOST_ON_PAGE
    ) -> Paging:
        """Which part of a list is wanted: `order` and `limit`, by default these, `after` and `before`."""
        chosen = self._get("order") or order
        if chosen not in ("asc", "desc"):
            raise _wrong("order", "Use asc or desc.")
        limit = self.number("limit", limit, minimum=1, maximum=maximum)
        return Paging(cast(Order, chosen), self.text("after"), self.text("before"), limit)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The parameters of the form `prefix[KEY]`, by key."""
        values = {
            name: value
            for name, value in self._values.items()
            if name.startswith(f"{prefix}[") and name.endswith("]")
        }
        self._names.update(values)
        return {name[len(prefix) + 1 : -1]: value for name, value in values.items()}


def _wrong(name: str, remedy: str) -> RequestError:
    return RequestError(f"Invalid value for '{name}': {remedy}", param=name)


async def unless_disconnected(request: Request, working: Awaitable[T]) -> T | None:
    """The result of work; None if the client disconnects before, which cancels the work."""
    work, leaving = asyncio.ensure_future(working), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        observed().fail(ClientLeftError())
        return None
    finally:
        work.cancel()
        leaving.cancel()
        # Their errors have no reader any more; a cancellation of this task, which may arrive here, has.
        await asyncio.gather(work, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects. The body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(body: bytes) -> Response:
    """A JSON body."""
    return Response(body, media_type="application/json")
