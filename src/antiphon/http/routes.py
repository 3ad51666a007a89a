"""The rows of an API in the table of routes, and which API a path belongs to."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Scope

from antiphon.apis.api import OPENAI, Api
from antiphon.app.app import App
from antiphon.http.delivery import EventStream, FullAnswer
from antiphon.http.request import app_of, owner_of, read_request, request_id_of
from antiphon.run.drive import Driver

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
UseCase = Callable[[App, Any, str, str | None], Awaitable[Driver]]
"""A use case that answers a request of an owner, who may have given it an id in a header."""


class AnswerTypes(Struct, frozen=True):
    """The types of requests and full answers of a row."""

    request: type[Any]
    body: type[Any] | None


class ApiRoute(Route):
    """A row of an API; all other rows are of `OPENAI`. `types` are for the OpenAPI document."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        api: Api,
        methods: Sequence[str],
        types: AnswerTypes | None = None,
    ) -> None:
        super().__init__(path, endpoint, methods=[*methods])
        self.api = api
        self.types = types


def answers(
    path: str, type_: type[Any], use_case: UseCase, body: type[Any] | None = None, api: Api = OPENAI
) -> ApiRoute:
    """A row: POST requests of this type are answered, as a stream if their `stream` says so.

    `body` is the type of full answers.
    """

    async def handle(request: Request) -> EventStream | FullAnswer:
        app, wire = app_of(request), await read_request(request, type_, api=api)
        driver = await use_case(app, wire, owner_of(request), request_id_of(request))
        return EventStream(driver, app.settings, api=api) if wire.stream else FullAnswer(driver, app.settings)

    handle.__doc__ = use_case.__doc__
    return ApiRoute(path, handle, api, ["POST"], AnswerTypes(type_, body))


class ApiTable:
    """The API of each path: of the rows whose path, up to its first parameter, begins it, the longest."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        rows = [route for route in routes if isinstance(route, ApiRoute) and route.api is not OPENAI]
        self._beginnings = {row.path.partition("{")[0]: row.api for row in rows}
        self.others = [*{row.api.name: row.api for row in rows}.values()]
        """All that are not OpenAI's."""
        self._clients = {api.client_header: api for api in self.others if api.client_header is not None}

    def at(self, path: str) -> Api:
        """The API of a path."""
        beginnings = [beginning for beginning in self._beginnings if path.startswith(beginning)]
        return self._beginnings[max(beginnings, key=len)] if beginnings else OPENAI

    def of(self, scope: Scope) -> Api:
        """The API of a request: on a path that several have, the client's."""
        api = self.at(scope["path"])
        if api is OPENAI:
            return next((self._clients[name] for name, _ in scope["headers"] if name in self._clients), api)
        return api


def apis_of(scope: Scope) -> ApiTable:
    """The table of the application that received the request."""
    apis: ApiTable = scope["apis"]
    return apis
