"""GET /v1/models and /v1/models/{id}, adapters, replicas, HEAD /, /health, /ready, /version."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from time import time
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from antiphon import __version__
from antiphon.app.app import App
from antiphon.app.decisions import decides
from antiphon.app.siblings import CHANGE_SECONDS, Call
from antiphon.app.storage import StoreStatus
from antiphon.core.errors import AntiphonError
from antiphon.core.observation import observed
from antiphon.core.shared_loads import Drain
from antiphon.engines.pool import ReplicaState, ReplicaStatus
from antiphon.http.codex import CodexModel, codex_models
from antiphon.http.request import app_of, json_response, query_of, read_body
from antiphon.run.loading import ModelState, ModelStatus
from antiphon.run.models import Health, ModelEntry

log = structlog.get_logger()


class ShownModel(Struct, kw_only=True):
    """A model in the form of both OpenAI and Anthropic; fields that are unknown before loading are null."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "antiphon"
    root: str
    parent: str | None
    max_model_len: int | None
    input_modalities: list[str] | None
    tasks: list[str] | None
    decides: bool | None
    type: str = "model"
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None = None


class DecidingModel(Struct):
    """A model that answers questions with probabilities, as System One's clients read it."""

    name: str
    description: str
    release_date: str


class ModelList(Struct, kw_only=True, tag_field="object", tag="list"):
    """A list of models. If it is empty, both ids are null. `models` are those on the page that decide."""

    data: list[ShownModel]
    models: list[DecidingModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Catalogue(Struct, kw_only=True, tag_field="object", tag="list"):
    """The same list for Codex, which names its version: `models` are those on the page that write answers."""

    data: list[ShownModel]
    models: list[CodexModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


async def list_models(request: Request) -> Response:
    """Every name that requests may use, or part of them, in the shapes of both OpenAI and Anthropic."""
    app, query = app_of(request), query_of(request)
    models = app.models
    entries = {entry.name: entry for entry in models.entries()}
    names = [*entries]
    after, before = query.text("after_id"), query.text("before_id")
    first = names.index(after) + 1 if after in names else 0
    last = names.index(before) if before in names else len(names)
    limit = query.number("limit", len(names) or 1, minimum=1, maximum=1000)
    page = names[max(first, last - limit) : last] if before else names[first : first + limit]
    shown = [_resource(entries[name]) for name in page]
    first_id, last_id = (page[0], page[-1]) if page else (None, None)
    common: dict[str, Any] = {"data": shown, "first_id": first_id, "last_id": last_id}
    common["has_more"] = len(page) < last - first
    if query.text("client_version") is None:
        deciding = [_deciding(model) for model in shown if model.decides]
        return json_response(msgspec.json.encode(ModelList(models=deciding, **common)))
    told = [(entries[model.id], model.created_at[:10]) for model in shown]
    catalogue = [*codex_models(told, app.codex_instructions)]
    return json_response(msgspec.json.encode(Catalogue(models=catalogue, **common)))


async def retrieve_model(request: Request) -> Response:
    """One model by its name, which may contain slashes."""
    entry = app_of(request).models.entry(request.path_params["model"])
    return json_response(msgspec.json.encode(_resource(entry)))


class ServerHealth(Struct, frozen=True):
    """How the server, its store and its models are."""

    status: Health
    store: StoreStatus
    models: dict[str, ModelState]


class Version(Struct, frozen=True):
    """The version of Antiphon."""

    version: str = __version__


async def health(request: Request) -> Response:
    """200 while at least one model can answer; 503 before, while none can, and while the server stops."""
    server = _combined(await app_of(request).ask(HEALTH, None))
    return _health_response(server, server.status is Health.READY)


async def ready(request: Request) -> Response:
    """200 while requests should be sent here: as /health, and the store has to be readable and writable."""
    server = _combined(await app_of(request).ask(HEALTH, None))
    return _health_response(server, server.status is Health.READY and server.store is StoreStatus.READY)


def _health_response(server: ServerHealth, able: bool) -> Response:
    response = json_response(msgspec.json.encode(server))
    response.status_code = 200 if able else 503
    return response


async def _health_here(app: App, _: None) -> ServerHealth:
    """How store and models are for this process."""
    states, store = await asyncio.gather(app.models.states(), app.storage.status())
    now = app.models.health
    if (
        now is Health.READY
        and states
        and all(model.status is ModelStatus.FAILED for model in states.values())
    ):
        now = Health.FAILED
    if store is StoreStatus.OPENING and now is Health.READY:
        now = Health.LOADING
    return ServerHealth(now, store, states)


HEALTH = Call("health", _health_here, None, ServerHealth)


def _combined(processes: Sequence[ServerHealth]) -> ServerHealth:
    """How a server is whose processes say this: as well as the best of them, which take the requests."""
    best = min(processes, key=lambda process: _BEST_FIRST.index(process.status))
    able = [process for process in processes if process.status is best.status]
    stores = [process.store for process in able]
    models = {
        name: min((process.models[name] for process in able if name in process.models), key=_state_order)
        for process in able
        for name in process.models
    }
    return ServerHealth(best.status, max(stores, key=[*StoreStatus].index), models)


def _state_order(state: ModelState) -> tuple[bool, int]:
    return state.status is not ModelStatus.READY, -(state.up or 0)


_BEST_FIRST = (Health.READY, Health.DRAINING, Health.LOADING, Health.FAILED)


async def version(request: Request) -> Response:
    """The version of Antiphon."""
    return json_response(msgspec.json.encode(Version()))


class LoadAdapter(Struct):
    """The body of a request to load an adapter, as in vLLM's server, with the name of its model."""

    lora_name: Annotated[str, Meta(min_length=1, max_length=256)]
    lora_path: Annotated[str, Meta(min_length=1)]
    load_inplace: bool = False
    base_model_name: str | None = None


class UnloadAdapter(Struct):
    """The body of a request to unload an adapter. `lora_int_id` is vLLM's, and has no effect here."""

    lora_name: str
    lora_int_id: int | None = None


async def load_adapter(request: Request) -> PlainTextResponse:
    """Load a LoRA adapter, which is a model of its own to clients."""
    wire = await read_body(request, LoadAdapter, "small_body_bytes")
    await app_of(request).ask(LOAD_ADAPTER, wire)
    return PlainTextResponse(f"Success: LoRA adapter '{wire.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> PlainTextResponse:
    """Unload an adapter. Its running answers continue."""
    wire = await read_body(request, UnloadAdapter, "small_body_bytes")
    await app_of(request).ask(UNLOAD_ADAPTER, wire)
    return PlainTextResponse(f"Success: LoRA adapter '{wire.lora_name}' removed successfully.")


async def _load_here(app: App, wire: LoadAdapter) -> None:
    again = wire.load_inplace
    await app.models.load_adapter(wire.lora_name, wire.lora_path, wire.base_model_name, again=again)


async def _unload_here(app: App, wire: UnloadAdapter) -> None:
    await app.models.unload_adapter(wire.lora_name)


LOAD_ADAPTER = Call("load_adapter", _load_here, LoadAdapter, None, CHANGE_SECONDS)
UNLOAD_ADAPTER = Call("unload_adapter", _unload_here, UnloadAdapter, None, CHANGE_SECONDS)


class DrainReplica(Struct):
    """The body of a request to drain a replica: its URL, or its name in /v1/replicas."""

    replica: Annotated[str, Meta(min_length=1)]


class ReplicaBody(Struct):
    """A replica of a model. `elsewhere` are the answers of other servers, as far as they are known."""

    id: str
    model: str
    status: ReplicaStatus
    running: int
    waiting: int
    elsewhere: int = 0
    drained_by: str | None = None
    """The name of a key."""
    drained_at: int | None = None
    """In seconds since 1970."""
    object: str = "replica"


class ReplicaList(Struct):
    """All replicas of all models."""

    data: list[ReplicaBody]
    object: str = "list"


class DrainChange(Struct, frozen=True):
    """From now on a replica gets no requests or, without `drain`, gets some again."""

    replica: str
    drain: Drain | None


async def _drain_here(app: App, change: DrainChange) -> None:
    if app.shared_pools.shares(change.replica):
        await app.shared_pools.refresh()
    else:
        app.models.drain(change.replica, change.drain)


async def _replicas_here(app: App, _: None) -> list[ReplicaBody]:
    return [_replica(model, state) for model, state in app.models.replicas]


def _replica(model: str, state: ReplicaState) -> ReplicaBody:
    body = ReplicaBody(
        state.name, model, state.status, state.running, state.waiting, elsewhere=state.elsewhere
    )
    if state.drained is not None:
        body.drained_by, body.drained_at = state.drained.by, int(state.drained.at)
    return body


DRAIN = Call("drain", _drain_here, DrainChange, None, CHANGE_SECONDS)
REPLICAS = Call("replicas", _replicas_here, None, list[ReplicaBody])


async def list_replicas(request: Request) -> Response:
    """The replicas of all models, and their states."""
    return await _replicas(app_of(request))


async def drain_replica(request: Request) -> Response:
    """Give a replica no more requests. Its running answers are finished."""
    return await _drained(request, Drain(observed().account.name, time()))


async def resume_replica(request: Request) -> Response:
    """Give it requests again; also one that is not in the options now, once it is there again."""
    return await _drained(request, None)


async def _drained(request: Request, drain: Drain | None) -> Response:
    wire = await read_body(request, DrainReplica, "small_body_bytes")
    app = app_of(request)
    unlisted = drain is None and wire.replica not in app.models.replica_loads
    if unlisted and await app.shared_pools.resume_unlisted(wire.replica):
        return await _replicas(app, wire.replica)
    app.models.require_replica(wire.replica)
    if app.shared_pools.shares(wire.replica):
        if drain is None:
            await app.shared_pools.resume(wire.replica)
        else:
            await app.shared_pools.drain(wire.replica, drain.by)
    await app.ask(DRAIN, DrainChange(wire.replica, drain))
    return await _replicas(app, wire.replica)


async def _replicas(app: App, name: str | None = None) -> Response:
    replicas: dict[tuple[str, str], ReplicaBody] = {}
    for process in await app.ask(REPLICAS, None):
        for replica in process:
            key = replica.model, replica.id
            before = replicas.get(key)
            replicas[key] = replica if before is None else _together(before, replica)
    listed = [replica for replica in replicas.values() if name in (None, replica.id)]
    return json_response(msgspec.json.encode(ReplicaList(listed)))


def _together(one: ReplicaBody, other: ReplicaBody) -> ReplicaBody:
    """A replica of which two processes say this: drained if one says so, and up if one reaches it."""
    order = (ReplicaStatus.DRAINED, ReplicaStatus.UP, ReplicaStatus.AWAY)
    first = min(one, other, key=lambda replica: order.index(replica.status))
    return replace(
        first,
        running=one.running + other.running,
        waiting=one.waiting + other.waiting,
        elsewhere=max(one.elsewhere, other.elsewhere),
    )


class LoadedAdapter(Struct, frozen=True):
    """An adapter that a process has loaded."""

    model: str
    name: str
    path: str


async def _adapters_here(app: App, _: None) -> list[LoadedAdapter]:
    return [LoadedAdapter(*adapter) for adapter in app.models.adapters]


ADAPTERS = Call("adapters", _adapters_here, None, list[LoadedAdapter])


async def follow_siblings(app: App) -> None:
    """Drain what other processes have drained, and load their adapters: this one was started later."""
    replicas = [replica for process in await app.ask(REPLICAS, None) for replica in process]
    for replica in replicas:
        if replica.drained_at is not None and not app.shared_pools.shares(replica.id):
            app.models.drain(replica.id, Drain(replica.drained_by or "", replica.drained_at))
    adapters = [adapter for process in await app.ask(ADAPTERS, None) for adapter in process]
    for adapter in dict.fromkeys(adapters):
        if adapter.name not in app.models.names:
            try:
                await app.models.load_adapter(adapter.name, adapter.path, adapter.model, again=False)
            except AntiphonError as error:
                log.warning(
                    "an adapter of another process cannot be loaded", name=adapter.name, why=error.message
                )


def _deciding(model: ShownModel) -> DecidingModel:
    what = f"{model.parent} with an adapter" if model.parent else "A chat model"
    seen = ", ".join(model.input_modalities or ())
    description = f"{what} that answers questions about {seen} with probabilities."
    return DecidingModel(model.id, description, model.created_at[:10])


def _resource(entry: ModelEntry) -> ShownModel:
    card = entry.card
    created, context = (0, None) if card is None else (card.created, card.context or None)
    return ShownModel(
        id=entry.name,
        created=created,
        root=entry.root,
        parent=entry.parent,
        max_model_len=context,
        input_modalities=None if card is None else ["text", *sorted(card.capabilities.media)],
        tasks=None if card is None else sorted(card.capabilities.tasks),
        decides=None if card is None else decides(card.capabilities),
        display_name=entry.name,
        created_at=datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=context,
        max_tokens=context,
    )
