"""The composition root: options → the parts of a server, connected.

Wrong options are found here, before a model is loaded.
"""

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from antiphon.apis.responses.output.reasoning import RAW, RAW_OPEN_RESPONSES
from antiphon.apis.sealing import Sealer
from antiphon.app import search
from antiphon.app.app import App, Options
from antiphon.app.attachments import AttachmentReader, Downloader
from antiphon.app.containers import ContainerKeeper
from antiphon.app.keys import KeyTable
from antiphon.app.metrics import Metrics
from antiphon.app.storage import Storage
from antiphon.app.worker import Worker
from antiphon.config import Settings, identity_of, read_keep_loaded
from antiphon.core.errors import AntiphonError, StoreError, StoreUnavailableError, needing_extra
from antiphon.core.limits import DAY, read_limits
from antiphon.core.observation import NoTracing, Tracing
from antiphon.dialects.registry import check
from antiphon.engines.engine import Engine
from antiphon.engines.pool import PoolEngine
from antiphon.model_tables import ModelSettings, read_sampling, read_variables
from antiphon.render.renderer import BUILT_IN
from antiphon.run.loading import ServedModel
from antiphon.run.models import KeepLoaded, Models
from antiphon.store.open import default_path, open_store
from antiphon.store.records import StoreLimits
from antiphon.store.store import Store
from antiphon.toolkits.code_interpreter.whole_python import Interpreters, PythonInterpreter
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.registry import Toolkits, find
from antiphon.tools.discovery import Tools, by_type

if TYPE_CHECKING:
    from antiphon.tools.mcp.tool import Mcp

_REASONING_FIELDS = {"both": ("reasoning_content", "reasoning")}
_REASONING_FORMS = {"openai": RAW, "open-responses": RAW_OPEN_RESPONSES}


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
        if self.mcp is not None:
            await self.mcp.start()
        await self.app.models.start()
        await self.worker.start()

    async def stop(self) -> None:
        """Free all resources. All answers have ended."""
        await self.app.models.close()
        await self.app.attachments.close()
        await self.worker.stop()
        await self.app.storage.stop()
        await asyncio.to_thread(self.app.tracing.close)


def compose(settings: Settings) -> Runtime:
    """The parts of a server with these options. Raises AntiphonError for options that cannot be used."""
    metrics = Metrics()
    storage = Storage(_open_store(settings), settings.lease_seconds, metrics)
    mcp = _mcp(settings)
    name = settings.search_embeddings
    embedder = None if name is None else search.ChunkEmbedder(name, lambda: app.models)
    limits = read_limits(settings.limit)
    searcher = search.searcher(storage, embedder, limits)
    tools = _tools(settings, ServerParts(searcher, ContainerKeeper(storage, limits), limits), mcp)
    keys, sealer = KeyTable(settings.api_key, settings.admin_key, settings.keys), Sealer(_secrets(settings))
    app = App(
        _models(settings, tools),  # last of the checks: files of models may have to be downloaded
        storage,
        sealer,
        _options(settings),
        default_tools=mcp.defaults if mcp else (),
        metrics=metrics,
        tracing=_tracing(settings),
        attachments=_attachments(settings),
        interpreters=next(
            (tool.interpreters for tool in tools.values() if isinstance(tool, PythonInterpreter)), None
        ),
        toolkits=_toolkits(settings),
        embedder=embedder,
        keys=keys,
    )
    if name is not None:
        app.models.require(name, "find texts by their meaning, for --search-embeddings")
    return Runtime(app, Worker(app, jobs=settings.jobs, lease=settings.lease_seconds), mcp)


def _models(settings: Settings, tools: Tools) -> Models:
    """The models, none of them loaded."""
    single = ModelSettings(
        settings.model_name,
        (settings.engine,),
        settings.dialect,
        None if settings.chat_template is None else str(settings.chat_template),
        reasoning_tags=settings.reasoning_tags,
    )
    served = [_served(model, settings, tools) for model in settings.models or (single,)]
    most, memory = (None, None) if settings.keep_loaded is None else read_keep_loaded(settings.keep_loaded)
    for each in served:
        if memory is not None and each.memory > memory:
            need = -(-each.memory // 1024**2)
            message = f"The model {each.names[0]} takes about {need} MiB, more than --keep-loaded allows. "
            raise AntiphonError(message + "Raise it, or give the model a smaller context or fewer slots.")
    limits = read_limits(settings.limit)
    return Models(served, default=settings.default_model, keep=KeepLoaded(most, memory), limits=limits)


def _served(model: ModelSettings, settings: Settings, tools: Tools) -> ServedModel:
    """One of the models. Raises AntiphonError for invalid options."""
    try:
        template = _read(Path(model.chat_template)) if model.chat_template else None
        if model.dialect is not None:
            check(model.dialect)
        return ServedModel(
            _engine(model, settings),
            names=model.names,
            dialect=model.dialect,
            reasoning_tags=model.reasoning_tags,
            chat_template=template,
            date=settings.date,
            content_format=model.content_format or settings.chat_template_content_format,
            sampling={**_limit(settings), **read_sampling(settings.sampling), **model.sampling},
            variables={**read_variables(settings.variable), **model.variables},
            force_sampling={**read_sampling(settings.force_sampling), **model.force_sampling},
            force_variables={**read_variables(settings.force_variable), **model.force_variables},
            adapters=model.adapters,
            exclude_tools=settings.exclude_tools_when_tool_choice_none,
            tools=tools,
            limits=read_limits(settings.limit),
        )
    except AntiphonError as error:
        if not settings.models:
            raise
        raise AntiphonError(f"The model {model.names[0]}: {error.message}") from error


def _limit(settings: Settings) -> dict[str, int]:
    """The default sampling for all models."""
    return {} if settings.max_tokens is None else {"max_tokens": settings.max_tokens}


def _engine(model: ModelSettings, settings: Settings) -> Engine:
    """The engine: a single one, or a pool."""
    limits = read_limits(settings.limit)
    engines = [(str(getattr(options, "model", "")), options.build(limits)) for options in model.engines]
    return PoolEngine(engines) if len(engines) > 1 else engines[0][1]


def _toolkits(settings: Settings) -> Toolkits:
    """The toolkits. Raises AntiphonError if two of them collide."""
    try:
        return Toolkits(map(find, settings.tools))
    except ValueError as error:
        raise AntiphonError(str(error)) from error


def _tools(settings: Settings, server: ServerParts, mcp: "Mcp | None") -> Tools:
    """The tools that the options request. Raises AntiphonError if two have one name."""
    opened = (options.open(server) for options in settings.tools.values())
    try:
        return by_type(tool for tool in (*opened, mcp) if tool is not None)
    except ValueError as error:
        raise AntiphonError(str(error)) from error


def _interpreters(tools: Tools) -> Interpreters | None:
    """The interpreters of containers, if there is a tool that uses them."""
    whole = (tool for tool in tools.values() if isinstance(tool, PythonInterpreter))
    return next((tool.interpreters for tool in whole), None)


def _attachments(settings: Settings) -> AttachmentReader:
    downloader: Downloader | None = None
    if settings.media_domain != ("none",) and find_spec("httpx2") and find_spec("webencodings"):
        from antiphon.tools.web import fetch  # noqa: PLC0415 - an optional extra
        from antiphon.tools.web.domains import Domains  # noqa: PLC0415

        downloader = fetch.Downloader(Domains(allowed=settings.media_domain))
    return AttachmentReader(read_limits(settings.limit), settings.media_fallback, downloader)


def _mcp(settings: Settings) -> "Mcp | None":
    """The connections to MCP servers, if any may be named."""
    if not (settings.mcp_host or settings.mcp_servers):
        return None
    with needing_extra("--mcp-host", "mcp"):
        from antiphon.tools.mcp.open import open_mcp  # noqa: PLC0415
    return open_mcp(settings.mcp_servers, settings.mcp_host, read_limits(settings.limit), identity_of)


def _tracing(settings: Settings) -> Tracing:
    """The exporter of traces, if configured."""
    if settings.otlp_endpoint is None:
        return NoTracing()
    with needing_extra("--otlp-endpoint", "tracing"):
        from antiphon.app.tracing import exporting  # noqa: PLC0415
    return exporting(settings.otlp_endpoint)


def _options(settings: Settings) -> Options:
    return Options(
        limits=read_limits(settings.limit),
        keep_alive=settings.keep_alive,
        stall=settings.stall_seconds,
        deadline=settings.deadline_seconds,
        trust_templates=settings.trust_chat_templates,
        force_usage=settings.force_include_usage,
        reasoning_fields=_REASONING_FIELDS.get(settings.reasoning_field, (settings.reasoning_field,)),
        reasoning_form=_REASONING_FORMS[settings.reasoning_events],
        keep=settings.keep_days * DAY,
        stores=settings.store != "none",
        tokens_as_ids=settings.return_tokens_as_token_ids,
        log_content=settings.log_content,
        debug_answers=settings.debug_answers,
        host=settings.host,
        hosts=settings.allow_host,
        origins=settings.allow_origin,
    )


def _open_store(settings: Settings) -> Callable[[], Awaitable[Store]]:
    """A function that opens the configured store. If that fails, the server does not start."""
    given = read_limits(settings.limit)
    limits = StoreLimits(
        history=given.history_bytes,
        page=given.page_bytes,
        response=given.response_bytes,
        conversation=given.conversation_bytes,
        stored=given.stored_bytes,
        all_stored=given.all_stored_bytes,
        conversations=given.conversations,
        files=given.files,
        vector_stores=given.vector_stores,
        containers=given.containers,
        container_files=given.container_files,
    )

    async def opened() -> Store:
        try:
            return await _open_with_retries(lambda: open_store(settings.store, limits))
        except (ValueError, StoreError) as error:
            why = error.why if isinstance(error, StoreError) else str(error)
            message = f"Cannot open the store: {why.rstrip('.')}. Choose another with --store."
            raise AntiphonError(message) from error

    return opened


async def _open_with_retries(opened: Callable[[], Awaitable[Store]]) -> Store:
    """The store, when its database is available: servers and databases are often started together."""
    begun = time.monotonic()
    while True:
        try:
            return await opened()
        except StoreUnavailableError as error:
            waited = time.monotonic() - begun
            if waited > STORE_SECONDS:
                raise
            log.warning("waiting for the database", seconds=round(waited), most=STORE_SECONDS, why=error.why)
        await asyncio.sleep(RETRY_SECONDS)


def _secrets(settings: Settings) -> tuple[str, ...]:
    """The secrets for sealing: the configured ones, or one that is made at the first start."""
    if settings.secret:
        return settings.secret
    if settings.store in ("memory", "none"):
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
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"Cannot read the chat template {template}: {error}. Built in: {', '.join(BUILT_IN)}."
        raise AntiphonError(message) from error
    if not text.strip():
        raise AntiphonError(f"The chat template {template} is empty.")
    return text
