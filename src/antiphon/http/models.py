"""GET /v1/models and /v1/models/{id}, adapters, replicas, HEAD /, /health, /ready, /version."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from antiphon import __version__
from antiphon.app.app import App
from antiphon.app.decisions import decides
from antiphon.app.storage import StoreStatus
from antiphon.engines.pool import ReplicaStatus
from antiphon.http.codex import CodexModel, codex_models
from antiphon.http.request import app_of, json_response, query_of, read_body
from antiphon.run.loading import ModelState, ModelStatus
from antiphon.run.models import Health, ModelEntry


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
    server = await _server_health(app_of(request))
    return _health_response(server, server.status is Health.READY)


async def ready(request: Request) -> Response:
    """200 while requests should be sent here: as /health, and the store has to be readable and writable."""
    server = await _server_health(app_of(request))
    return _health_response(server, server.status is Health.READY and server.store is StoreStatus.READY)


def _health_response(server: ServerHealth, able: bool) -> Response:
    response = json_response(msgspec.json.encode(server))
    response.status_code = 200 if able else 503
    return response


async def _server_health(app: App) -> ServerHealth:
    """How server, store and models are."""
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
    models = app_of(request).models
    await models.load_adapter(wire.lora_name, wire.lora_path, wire.base_model_name, again=wire.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter '{wire.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> PlainTextResponse:
    """Unload an adapter. Its running answers continue."""
    wire = await read_body(request, UnloadAdapter, "small_body_bytes")
    await app_of(request).models.unload_adapter(wire.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{wire.lora_name}' removed successfully.")


class DrainReplica(Struct):
    """The body of a request to drain a replica: its URL, or its name in /v1/replicas."""

    replica: Annotated[str, Meta(min_length=1)]


class ReplicaBody(Struct):
    """A replica of a model."""

    id: str
    model: str
    status: ReplicaStatus
    running: int
    waiting: int
    object: str = "replica"


class ReplicaList(Struct):
    """All replicas of all models."""

    data: list[ReplicaBody]
    object: str = "list"


async def list_replicas(request: Request) -> Response:
    """The replicas of all models, and their states."""
    return _replicas(app_of(request))


async def drain_replica(request: Request) -> Response:
    """Give a replica no more requests. Its running answers are finished."""
    return await _drained(request, drained=True)


async def resume_replica(request: Request) -> Response:
    """Give it requests again."""
    return await _drained(request, drained=False)


async def _drained(request: Request, *, drained: bool) -> Response:
    wire = await read_body(request, DrainReplica, "small_body_bytes")
    app = app_of(request)
    app.models.drain(wire.replica, drained=drained)
    return _replicas(app, wire.replica)


def _replicas(app: App, name: str | None = None) -> Response:
    replicas = [
        ReplicaBody(state.name, model, state.status, state.running, state.waiting)
        for model, state in app.models.replicas
        if name in (None, state.name)
    ]
    return json_response(msgspec.json.encode(ReplicaList(replicas)))


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
