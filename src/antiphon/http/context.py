"""What every request handler may use: one object, made when the application is built."""

from msgspec import Struct
from starlette.requests import HTTPConnection

from antiphon.apis.envelope import REASONING_NAMES, UsageReports, View
from antiphon.apis.responses.output.thoughts import RAW, ThoughtForm
from antiphon.apis.responses.sealing import Sealer
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

    @property
    def view(self) -> View:
        """How chat answers and completions are shown, unless a request says otherwise."""
        usage = UsageReports.LAST if self.options.force_usage else UsageReports.NONE
        return View(usage=usage, reasoning=self.options.reasoning_fields)


def context_of(request: HTTPConnection) -> Context:
    """The context of the application that the request came to."""
    context: Context = request.app.state.context
    return context
