"""The composition root: options → the parts of a server, connected.

Wrong options are found here, before a model is loaded.
"""

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct

from antiphon.apis.sealing import Sealer
from antiphon.app import search
from antiphon.app.app import App
from antiphon.app.attachments import AttachmentReader, Downloader
from antiphon.app.containers import ContainerKeeper
from antiphon.app.keys import KeyTable
from antiphon.app.limit_ledger import StoreLedger
from antiphon.app.metrics import Metrics
from antiphon.app.moderation import Moderator
from antiphon.app.siblings import Alone, Siblings
from antiphon.app.storage import Storage
from antiphon.app.worker import Worker
from antiphon.config import Settings, identity_of
from antiphon.core.errors import AntiphonError, StoreError, StoreUnavailableError, needing_extra
from antiphon.core.limits import Limits
from antiphon.core.observation import NoTracing, Tracing
from antiphon.dialects.registry import check
from antiphon.engines.engine import Attachable, Engine, SharesSlots
from antiphon.engines.pool import PoolEngine, follow_of, member_of
from antiphon.model_tables import ModelSettings
from antiphon.processes.table import Shares
from antiphon.render.renderer import BUILT_IN, ChatTemplateRenderer, Renderer
from antiphon.run.loading import ServedModel
from antiphon.run.models import Models
from antiphon.store.open import OWN_STORES, default_path, open_store, require_lasting
from antiphon.store.store import SharesWatches, Store
from antiphon.toolkits.code_interpreter.whole_python import Interpreters, PythonInterpreter
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.registry import Toolkits, find
from antiphon.tools.discovery import Tools, by_type
from antiphon.tools.tool import ServerTool

if TYPE_CHECKING:
    from antiphon.tools.mcp.tool import Mcp

STORE_SECONDS = 60.0
"""How long a database may take to start, if it starts together with the server."""
RETRY_SECONDS = 1.0
"""Seconds between two attempts."""

log = structlog.get_logger()


class Runtime(Struct, frozen=True):
    """The parts of a server besides HTTP: the use cases, the worker on background responses, MCP servers."""

    app: App
    worker: Worker
    mcp: "Mcp | None" = None

    async def start(self) -> None:
        """Open the store, and load the models. Work on stored responses begins when both are there."""
        await self.app.storage.start()  # first: a model may take minutes
        if self.app.settings.store not in OWN_STORES:
            self.app.keys.share(StoreLedger(self.app.storage, self.app.metrics))
            await self.app.shared_pools.start()
        if self.mcp is not None:
            await self.mcp.start()
        await self.app.models.start()
        await self.worker.start()

    async def stop(self) -> None:
        """Free all resources. All answers have ended."""
        await self.app.models.close()
        await self.app.attachments.close()
        await self.worker.stop()
        await self.app.keys.close()
        await self.app.shared_pools.stop()
        await self.app.storage.stop()
        await asyncio.to_thread(self.app.tracing.close)


class Parts:
    """The parts of a server by their names, each made when it is first used, of the options and other parts.

    One that is `given` is used instead: so tests and the simulation replace some, and share all others.
    """

    def __init__(self, settings: Settings, **given: Any) -> None:
        if unknown := given.keys() - PART_NAMES:
            raise TypeError(f"there are no parts {', '.join(sorted(unknown))}")
        self.settings = settings
        vars(self).update(given)

    @cached_property
    def open_store(self) -> Callable[[], Awaitable[Store]]:
        """Opens the configured store. If that fails, the server does not start."""

        async def opened() -> Store:
            settings = self.settings
            try:
                store = await _open_with_retries(lambda: open_store(settings.store, settings.limit))
            except (ValueError, StoreError) as error:
                why = error.why if isinstance(error, StoreError) else str(error)
                message = f"Cannot open the store: {why.rstrip('.')}. Choose another with --store."
                raise AntiphonError(message) from error
            if self.shares is not None and isinstance(store, SharesWatches):
                store.share(self.shares.watches)
            return store

        return opened

    @cached_property
    def metrics(self) -> Metrics:
        """The counters and histograms."""
        return Metrics()

    @cached_property
    def storage(self) -> Storage:
        """The store, when it is open."""
        return Storage(self.open_store, self.settings.lease_seconds, self.metrics)

    @cached_property
    def key_table(self) -> KeyTable:
        """The accounts of clients."""
        return KeyTable(self.settings.api_key, self.settings.admin_key, self.settings.keys)

    @cached_property
    def sealer(self) -> Sealer:
        """Encrypts what clients keep for the server."""
        return Sealer(secrets_of(self.settings))

    @cached_property
    def tracing(self) -> Tracing:
        """The exporter of traces, if configured."""
        if self.settings.otlp_endpoint is None:
            return NoTracing()
        with needing_extra("--otlp-endpoint", "tracing"):
            from antiphon.app.tracing import exporting  # noqa: PLC0415
        return exporting(self.settings.otlp_endpoint)

    @cached_property
    def attachments(self) -> AttachmentReader:
        """Reads what is attached to requests."""
        settings = self.settings
        downloader: Downloader | None = None
        if settings.media_domain != ("none",) and find_spec("httpx2") and find_spec("webencodings"):
            from antiphon.tools.web import fetch  # noqa: PLC0415 - an optional extra
            from antiphon.tools.web.domains import Domains  # noqa: PLC0415

            downloader = fetch.Downloader(Domains(allowed=settings.media_domain))
        return AttachmentReader(settings.limit, settings.media_fallback, downloader)

    @cached_property
    def toolkits(self) -> Toolkits:
        """The toolkits. Two of other packages may collide."""
        try:
            return Toolkits(map(find, self.settings.tools))
        except ValueError as error:
            raise AntiphonError(str(error)) from error

    @cached_property
    def mcp(self) -> "Mcp | None":
        """The connections to MCP servers, if any may be named."""
        settings = self.settings
        if not (settings.mcp_host or settings.mcp_servers):
            return None
        with needing_extra("--mcp-host", "mcp"):
            from antiphon.tools.mcp.open import open_mcp  # noqa: PLC0415
        return open_mcp(settings.mcp_servers, settings.mcp_host, settings.limit, identity_of)

    @cached_property
    def default_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that requests have without naming them."""
        return self.mcp.defaults if self.mcp else ()

    @cached_property
    def tools(self) -> Sequence[ServerTool]:
        """The tools that the options request."""
        limits, storage = self.settings.limit, self.storage
        searcher = search.searcher(storage, self.embedder, limits)
        server = ServerParts(searcher, ContainerKeeper(storage, limits), limits)
        opened = (options.open(server) for options in self.settings.tools.values())
        return [tool for tool in (*opened, self.mcp) if tool is not None]

    @cached_property
    def interpreters(self) -> Interpreters | None:
        """Runs programs in containers, if there is a tool that needs it."""
        whole = (tool for tool in self.tools if isinstance(tool, PythonInterpreter))
        return next((tool.interpreters for tool in whole), None)

    @cached_property
    def embedder(self) -> search.ChunkEmbedder | None:
        """Makes the vectors of vector stores."""
        name = self.settings.search_embeddings
        return None if name is None else search.ChunkEmbedder(name, lambda: self.models)

    @cached_property
    def moderator(self) -> Moderator | None:
        """Checks texts with the guard model."""
        settings = self.settings
        if settings.moderation is None:
            return None
        form, window = settings.moderation_format, settings.moderation_window
        return Moderator(settings.moderation, form, window, lambda: self.models, settings.limit)

    @cached_property
    def told_by_codex(self) -> str | None:
        """What Codex tells the models that it finds here, if the operator says it."""
        path = self.settings.codex_instructions
        return None if path is None else _text_of(path, "instructions")

    @cached_property
    def render(self) -> Callable[..., Renderer]:
        """Makes the renderer of a chat template."""
        return ChatTemplateRenderer

    @cached_property
    def models(self) -> Models:
        """The models, none of them loaded."""
        try:
            tools = by_type(self.tools)
        except ValueError as error:
            raise AntiphonError(str(error)) from error
        return _models(self.settings, tools, self.render, self.shares)

    @cached_property
    def siblings(self) -> Siblings:
        """The processes of this server."""
        return Alone()

    @cached_property
    def shares(self) -> Shares | None:
        """What they share in memory, if they are several."""
        return None

    @cached_property
    def app(self) -> App:
        """What all use cases depend on."""
        return App(
            storage=self.storage,
            sealer=self.sealer,
            settings=self.settings,
            toolkits=self.toolkits,
            default_tools=self.default_tools,
            metrics=self.metrics,
            tracing=self.tracing,
            attachments=self.attachments,
            keys=self.key_table,
            interpreters=self.interpreters,
            embedder=self.embedder,
            moderator=self.moderator,
            codex_instructions=self.told_by_codex,
            siblings=self.siblings,
            models=self.models,  # last of the checks: files of models may have to be downloaded
        )


PART_NAMES = frozenset(name for name, part in vars(Parts).items() if isinstance(part, cached_property))


def compose(settings: Settings, **given: Any) -> Runtime:
    """A server with these options, and with the `given` parts in the place of its own.

    Raises AntiphonError for options that cannot be used.
    """
    if settings.durable_streams:
        require_lasting(settings.store)
    parts = Parts(settings, **given)
    return Runtime(parts.app, Worker(parts.app), parts.mcp)


def _models(
    settings: Settings, tools: Tools, render: Callable[..., Renderer], shares: Shares | None
) -> Models:
    """The models, none of them loaded."""
    served = [_served(model, settings, tools, render, shares) for model in settings.served]
    keep, limits = settings.keep_loaded, settings.limit
    for model in served:
        if keep.memory is not None and model.memory > keep.memory:
            need = -(-model.memory // 1024**2)
            message = f"The model {model.names[0]} takes about {need} MiB, more than --keep-loaded allows. "
            raise AntiphonError(message + "Raise it, or give the model a smaller context or fewer slots.")
    models = Models(served, default=settings.default_model, keep=keep, limits=limits)
    if settings.search_embeddings is not None:
        models.require(settings.search_embeddings, "find texts by their meaning, for --search-embeddings")
    if settings.moderation is not None:
        models.require(settings.moderation, "check texts, for --moderation")
    return models


def _served(
    model: ModelSettings,
    settings: Settings,
    tools: Tools,
    render: Callable[..., Renderer],
    shares: Shares | None,
) -> ServedModel:
    """One of the models. Raises AntiphonError for invalid options."""
    limits = settings.limit
    try:
        template = _read(model.chat_template) if model.chat_template else None
        if model.dialect is not None:
            check(model.dialect)
        engine = _engine(model, limits, shares)
        if shares is not None and isinstance(engine, SharesSlots):
            engine.share(shares.permits)
        return ServedModel(engine, model, template=template, tools=tools, limits=limits, render=render)
    except AntiphonError as error:
        if not settings.models:
            raise
        raise AntiphonError(f"The model {model.model_name[0]}: {error.message}") from error


def _engine(model: ModelSettings, limits: Limits, shares: Shares | None) -> Engine:
    """The engine: a single one, or a pool."""
    is_pool = len(model.engines) > 1
    engines = [
        (str(getattr(options, "model", "")), member_of(options, limits) if is_pool else options.build(limits))
        for options in model.engines
    ]
    for _, engine in engines:
        if shares is not None and isinstance(engine, Attachable):
            engine.attach(shares.link())
    return PoolEngine(engines, follow=follow_of(model.engines)) if is_pool else engines[0][1]


async def _open_with_retries(opened: Callable[[], Awaitable[Store]]) -> Store:
    """The store, when its database is available: servers and databases are often started together."""
    start = time.monotonic()
    while True:
        try:
            return await opened()
        except StoreUnavailableError as error:
            waited = time.monotonic() - start
            if waited > STORE_SECONDS:
                raise
            log.warning("waiting for the database", seconds=round(waited), most=STORE_SECONDS, why=error.why)
        await asyncio.sleep(RETRY_SECONDS)


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """The secrets for sealing: the configured ones, or one that is made at the first start."""
    if settings.secret:
        return settings.secret
    if settings.store in OWN_STORES:
        return (secrets.token_urlsafe(32),)
    path = default_path().with_name("secret")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_secret(path)
        return (path.read_text(encoding="utf-8").strip(),)
    except OSError as error:
        message = f"Cannot keep a secret in {path}: {error.strerror}. Give one with --secret."
        raise AntiphonError(message) from error


def _make_secret(path: Path) -> None:
    """Write a secret atomically: if two servers start together, the first wins."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent)  # readable for its owner only
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _read(template: Path) -> str:
    """A chat template, from a file or by its name."""
    if (built_in := BUILT_IN.get(str(template))) is not None:
        return built_in
    return _text_of(template, "chat template", f" Built in: {', '.join(BUILT_IN)}.")


def _text_of(path: Path, kind: str, remedy: str = "") -> str:
    """The text of a file of this kind. Raises AntiphonError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AntiphonError(f"Cannot read the {kind} {path}: {error}.{remedy}") from error
    if not text.strip():
        raise AntiphonError(f"The {kind} {path} is empty.")
    return text
