"""What every request handler may use: one object, made when the application is built."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.requests import HTTPConnection

from antiphon.apis.chat.accept import House
from antiphon.apis.envelope import REASONING_NAMES, UsageReports, View
from antiphon.apis.hosted import Hosts
from antiphon.apis.responses.output.thoughts import RAW, ThoughtForm
from antiphon.apis.responses.sealing import Sealer
from antiphon.run.model import Model
from antiphon.run.service import Service
from antiphon.run.worker import Worker

MIB = 1024 * 1024
DAY = 24 * 60 * 60


class Options(Struct, frozen=True):
    """How the server behaves towards clients.

    `max_body_bytes` bounds request bodies. After `patience` seconds of silence
    a stream sends a comment. With `trust_templates` clients may bring chat
    templates. With `force_usage` every stream ends with its usage. `reasoning_fields` are
    the fields of chat answers that hold thoughts; `thoughts` is how the Responses API
    tells of them. What is stored is kept for `keep` seconds.
    """

    max_body_bytes: int = 32 * MIB
    patience: float = 15.0
    trust_templates: bool = False
    force_usage: bool = False
    reasoning_fields: tuple[str, ...] = REASONING_NAMES
    thoughts: ThoughtForm = RAW
    keep: float = 30 * DAY


class Context(Struct, frozen=True):
    """The model service, the worker with its store, what seals for clients, and the options."""

    service: Service
    worker: Worker
    sealer: Sealer
    options: Options

    def house(self, model: str) -> House:
        """What the server brings to a chat request. Raises NotFoundError, EngineNotReadyError."""
        return House(self.view, hosts_of(self.service.model(model)))

    @property
    def view(self) -> View:
        """How chat answers and completions are shown, unless a request says otherwise."""
        usage = UsageReports.LAST if self.options.force_usage else UsageReports.NONE
        return View(usage=usage, reasoning=self.options.reasoning_fields)


def hosts_of(model: Model) -> Hosts:
    """The tools that the server runs, as the model is offered them."""

    def check(type_: str, settings: Mapping[str, Any], where: str) -> None:
        model.tools[type_].check(settings, where)

    return Hosts(model.hosted, check)


def context_of(request: HTTPConnection) -> Context:
    """The context of the application that the request came to."""
    context: Context = request.app.state.context
    return context
