"""The dependencies of all use cases: one object, made by the composition root."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from time import time
from typing import Any, TypeVar

import structlog
from msgspec import Struct, field
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from antiphon.apis.envelope import REASONING_FIELDS, PresentationOptions, UsageReports
from antiphon.apis.responses.kept_items import KeptItems
from antiphon.apis.sealing import Sealer, Signer
from antiphon.app.attachments import AttachmentReader, Contents, count_attachments
from antiphon.app.cache_traces import CacheTraces
from antiphon.app.keys import KeyTable
from antiphon.app.metrics import Metrics
from antiphon.app.moderation import Moderator
from antiphon.app.records import AnswerRecords
from antiphon.app.search import ChunkEmbedder, FileSearcher, searcher
from antiphon.app.shared_replicas import SharedPools
from antiphon.app.siblings import Alone, Call, Given, Result, Siblings
from antiphon.app.storage import Storage
from antiphon.config import Settings
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, Note
from antiphon.core.limits import Limits
from antiphon.core.observation import NoTracing, Tracing
from antiphon.core.permits import Permits
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.core.turn import Turn
from antiphon.engines.engine import Load
from antiphon.run.drive import Driver, Journal, Projection, Source
from antiphon.run.model import Model
from antiphon.run.models import Models
from antiphon.run.resumed import ResumedJournal
from antiphon.toolkits.code_interpreter.whole_python import Interpreters
from antiphon.toolkits.registry import Toolkits, built_in
from antiphon.tools.discovery import ToolRequester, discover, offered_nothing

log = structlog.get_logger(__name__)

T = TypeVar("T")


MANY_ITEMS = 500
"""The number of items of a request, with their parts, from which on they are read in a thread."""
MANY_BYTES = 1024 * 1024
"""The same for the bytes of stored items that it continues."""


class LargeWork:
    """Runs large work in a thread, one piece at a time, so that the event loop stays free.

    Such work holds the interpreter lock; with several threads the event loop would wait for each of them.
    """

    def __init__(self) -> None:
        self.permits = Permits(1)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of this work, which goes on if the caller is cancelled."""
        return await self.permits.run(lambda: asyncio.ensure_future(asyncio.to_thread(work)))

    async def run_on_items(self, items: Any, work: Callable[[], T], history: Sequence[bytes] = ()) -> T:
        """The result of work on the items of a request, in a thread if they are many.

        `history` are the payloads of stored items that the work reads, too.
        """
        given = items if isinstance(items, list) else ()
        many = len(history) + len(given) + sum(map(_parts, given[:MANY_ITEMS])) > MANY_ITEMS
        large = many or sum(map(len, history)) > MANY_BYTES
        return await self.run(work) if large else work()


class App(Struct, frozen=True, dict=True):
    """The models, the store, the sealer, the options, and the toolkits, metrics and tracing.

    `attachments` reads attachments of clients. `keys` is the table of their accounts. `records` are the
    records of answers, if they are kept. `interpreters` run programs in containers. `embedder` makes the
    vectors of vector stores. `moderator` checks texts, if there is a guard model. `codex_instructions` are
    those for the models that Codex finds here. `siblings` are the processes of the server. `socket_bytes` are
    the bytes that the WebSockets of each client hold. `log` is for lines of requests: structlog would make it
    anew for each.
    """

    models: Models
    storage: Storage
    sealer: Sealer
    settings: Settings
    toolkits: Toolkits = field(default_factory=built_in)
    default_tools: tuple[Mapping[str, Any], ...] = ()
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing = NoTracing()
    attachments: AttachmentReader = field(default_factory=AttachmentReader)
    keys: KeyTable = field(default_factory=KeyTable)
    records: AnswerRecords = field(default_factory=AnswerRecords)
    interpreters: Interpreters | None = None
    embedder: ChunkEmbedder | None = None
    moderator: Moderator | None = None
    codex_instructions: str | None = None
    siblings: Siblings = field(default_factory=Alone)
    socket_bytes: Counter[str] = field(default_factory=Counter)
    large: LargeWork = field(default_factory=LargeWork)
    log: FilteringBoundLogger = field(default_factory=log.bind)

    async def ask(self, call: Call[Given, Result], given: Given) -> list[Result]:
        """What all processes of the server answer. Raises AntiphonError if one of them does."""
        return await self.siblings.ask(self, call, given)

    @property
    def limits(self) -> Limits:
        """The limits of the server."""
        return self.settings.limit

    @cached_property
    def traces(self) -> CacheTraces:
        """Traces of prompts."""
        return CacheTraces(self.limits)

    @cached_property
    def shared_pools(self) -> SharedPools:
        """The replicas of models, as far as servers share them."""
        return SharedPools(self.storage, self.metrics, self.models, lambda: self.siblings.server)

    @cached_property
    def kept_items(self) -> KeptItems:
        """The items of histories."""
        return KeptItems(self.limits.kept_item_bytes)

    @property
    def searcher(self) -> FileSearcher:
        """Searches vector stores."""
        return searcher(self.storage, self.embedder, self.limits)

    @property
    def permits(self) -> dict[str, Load]:
        """How many permits there are of each kind of work, how many are given, and how many wait."""
        schemas = [served.model.pool.permits for served in self.models.served if served.model is not None]
        own = {"attachments": self.attachments.pool.permits, "large_requests": self.large.permits}
        if self.moderator is not None:
            own["moderation"] = self.moderator.guard.permits
        pools_of = {"schemas": schemas} | {
            work: [pool] for work, pool in (own | self.metrics.permits).items()
        }
        return {
            work: Load(
                sum(pool.running for pool in pools),
                sum(pool.waiting for pool in pools),
                sum(pool.capacity for pool in pools),
            )
            for work, pools in pools_of.items()
        }

    def presentation(self, model: Model) -> PresentationOptions:
        """How answers of a model are presented by default."""
        shown = self.default_presentation
        if shown.tokens_as_ids and not model.card.capabilities.token_ids:
            return replace(shown, tokens_as_ids=False)
        return shown

    @cached_property
    def default_presentation(self) -> PresentationOptions:
        """How chat answers and completions are presented by default."""
        settings = self.settings
        return PresentationOptions(
            usage=UsageReports.LAST if settings.force_include_usage else UsageReports.NONE,
            reasoning=REASONING_FIELDS[settings.reasoning_field],
            tokens_as_ids=settings.return_tokens_as_token_ids,
        )

    def contents(self, owner: str) -> Contents:
        """The attachments of a request of an owner."""
        return Contents(self.attachments, owner, lambda: self.storage.store)

    async def attached(self, model: Model, turn: Turn, contents: Contents | None = None) -> Turn:
        """The turn with its attachments, as far as the model takes their media. Raises RequestError."""
        if not count_attachments(turn):
            return turn
        contents = contents or self.contents(turn.owner)
        return await self.attachments.read(turn, model.card.capabilities, contents)

    async def hosts(
        self, model: Model, requested: Mapping[str, Mapping[str, Any]], asking: ToolRequester
    ) -> Hosts:
        """The functions that a model gets for the requested server tools, by their place in the request.

        Raises RequestError, ToolError.
        """
        if not requested and not self.default_tools:
            return offered_nothing(model.tools)
        remote = sum(settings.get("type") == "mcp" for settings in requested.values())
        self.limits.check("mcp_servers", remote, "tools")
        return await discover(
            model.tools,
            requested,
            model.native_tools,
            replace(asking, defaults=self.default_tools, remedies=self.toolkits.remedies),
        )

    @staticmethod
    def notes_on_forced(model: Model, turn: Turn) -> tuple[Note, ...]:
        """Notes on the values of a request that the operator has forced to be others."""
        card = model.card
        if not card.forced and not card.forced_variables:
            return ()
        sampling = {name: card.defaults[name] for name in card.forced}
        requested = {name: getattr(turn.sampling, name) for name in sampling}
        requested |= {name: turn.variables.get(name) for name in card.forced_variables}
        return tuple(
            Note(turn.parameter(name), f"The operator has set '{name}' to {value!r} for every request.")
            for name, value in {**sampling, **card.forced_variables}.items()
            if requested[name] not in (None, (), {}, value)
        )

    @staticmethod
    def log_notes(notes: Sequence[Note]) -> None:
        """Log the notes on parts of a request without effect."""
        if notes:
            log.info("parts of a request have no effect", notes=[note.message for note in notes])

    def signer(self, owner: str) -> Signer:
        """Signs requests for approval to this owner."""
        return Signer(partial(self.sealer.sign, owner), partial(self.sealer.signed, owner))

    def seal(self, owner: str) -> Callable[[str], str]:
        """A function that encrypts text for this owner, so that clients cannot read it."""
        return partial(self.sealer.seal, owner)

    def driver(
        self,
        source: Source,
        projection: Projection,
        journal: Journal | None = None,
        seconds: float | None = None,
        requested_at: float | None = None,
    ) -> Driver:
        """The driver of an answer, which may take so many `seconds` since `requested_at`, or from now on.

        The limit of the server also applies.
        """
        deadline = self.settings.deadline_seconds
        if seconds is not None:
            deadline = seconds if deadline is None else min(seconds, deadline)
        if deadline is not None and requested_at is not None:
            deadline -= time() - requested_at
        record = STREAM_RECORD.get()
        if record is not None and record.resumed:
            record.details_types = self.toolkits.details
            journal = ResumedJournal(journal, record)
        return Driver(source, projection, journal, deadline)

    def check_template(self, template: str | None) -> None:
        """Raise RequestError for a client's template, unless the server trusts its clients."""
        if template is not None and not self.settings.trust_chat_templates:
            message = "This server takes no chat templates from clients. Leave it out."
            raise RequestError(message, param="chat_template")


def _parts(item: Any) -> int:
    content = item.get("content") if isinstance(item, dict) else getattr(item, "content", None)
    return len(content) if isinstance(content, list) else 0
