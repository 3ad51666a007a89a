"""GET /v1/models and /v1/models/{id}, adapters, replicas, HEAD /, /health, /ready, /version."""

import asyncio
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from antiphon import __version__
from antiphon.app.app import App
from antiphon.engines.pool import ReplicaStatus
from antiphon.http.request import Query, app_of, read_body
from antiphon.run.loading import ModelStatus
from antiphon.run.models import Health, ModelEntry


async def list_models(request: Request) -> JSONResponse:
    """Every name that requests may use, or part of them, in the shapes of both OpenAI and Anthropic."""
    models, query = app_of(request).models, Query(request.query_params)
    entries = {entry.name: entry for entry in models.entries()}
    names = [*entries]
    after, before = query.text("after_id"), query.text("before_id")
    first = names.index(after) + 1 if after in names else 0
    last = names.index(before) if before in names else len(names)
    limit = query.number("limit", len(names) or 1, least=1, most=1000)
    page = names[max(first, last - limit) : last] if before else names[first : first + limit]
    return JSONResponse(
        {
            "object": "list",
            "data": [_shown(entries[name]) for name in page],
            "has_more": len(page) < last - first,
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        }
    )


async def retrieve_model(request: Request) -> JSONResponse:
    """One model by its name, which may hold slashes."""
    return JSONResponse(_shown(app_of(request).models.entry(request.path_params["model"])))


async def reachable(request: Request) -> Response:
    """There is a server here: some clients ask before their first request."""
    return Response()


async def health(request: Request) -> JSONResponse:
    """200 while one model at least can answer; 503 before, while none can, and while the server stops."""
    found = await _find_out(app_of(request))
    return JSONResponse(found, 200 if found["status"] is Health.READY else 503)


async def ready(request: Request) -> JSONResponse:
    """200 while requests should be sent here: as /health, and the store has to answer, too."""
    found = await _find_out(app_of(request))
    able = found["status"] is Health.READY and found["store"] is StoreStatus.READY
    return JSONResponse(found, 200 if able else 503)


class StoreStatus(StrEnum):
    """Whether what is stored can be reached."""

    OPENING = "opening"
    READY = "ready"
    AWAY = "away"


async def _find_out(app: App) -> dict[str, Any]:
    """How server, store and models are."""
    states, answers = await asyncio.gather(app.models.states(), app.storage.answers())
    store = StoreStatus.READY if answers else StoreStatus.AWAY
    now = app.models.health
    if now is Health.READY and states and all(each.status is ModelStatus.FAILED for each in states.values()):
        now = Health.FAILED
    if not app.storage.started:
        store = StoreStatus.OPENING
        now = Health.LOADING if now is Health.READY else now
    return {"status": now, "store": store, "models": to_builtins(states)}


async def version(request: Request) -> JSONResponse:
    """The version of Antiphon."""
    return JSONResponse({"version": __version__})


class LoadAdapter(Struct):
    """The body of a request for an adapter, as vLLM's server has it, and which model it is for."""

    lora_name: Annotated[str, Meta(min_length=1, max_length=256)]
    lora_path: Annotated[str, Meta(min_length=1)]
    load_inplace: bool = False
    base_model_name: str | None = None


class UnloadAdapter(Struct):
    """The body of a request for an adapter to go. `lora_int_id` is vLLM's, and means nothing here."""

    lora_name: str
    lora_int_id: int | None = None


async def load_adapter(request: Request) -> PlainTextResponse:
    """Load a LoRA adapter, which is a model of its own to clients."""
    wire = await read_body(request, LoadAdapter, "small_body_bytes")
    models = app_of(request).models
    await models.load_adapter(wire.lora_name, wire.lora_path, wire.base_model_name, again=wire.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter '{wire.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> PlainTextResponse:
    """Unload one. Answers that it gives are not cut off."""
    wire = await read_body(request, UnloadAdapter, "small_body_bytes")
    await app_of(request).models.unload_adapter(wire.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{wire.lora_name}' removed successfully.")


class DrainReplica(Struct):
    """The body of a request about a replica: its URL, or the name that /v1/replicas tells."""

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


async def list_replicas(request: Request) -> JSONResponse:
    """The replicas of all models, and how they are."""
    return _replicas(app_of(request))


async def drain_replica(request: Request) -> JSONResponse:
    """Give a replica no more requests. Answers that it gives are not cut off."""
    return await _drained(request, drained=True)


async def resume_replica(request: Request) -> JSONResponse:
    """Give it requests again."""
    return await _drained(request, drained=False)


async def _drained(request: Request, *, drained: bool) -> JSONResponse:
    wire = await read_body(request, DrainReplica, "small_body_bytes")
    app = app_of(request)
    app.models.drain(wire.replica, drained=drained)
    return _replicas(app, wire.replica)


def _replicas(app: App, name: str | None = None) -> JSONResponse:
    found = [
        ReplicaBody(state.name, model, state.status, state.running, state.waiting)
        for model, state in app.models.replicas
        if name in (None, state.name)
    ]
    return JSONResponse(to_builtins(ReplicaList(found)))


def _shown(entry: ModelEntry) -> dict[str, Any]:
    """A model; what is not known before it is loaded is null."""
    created, context = (0, None) if entry.card is None else (entry.card.created, entry.card.context or None)
    openai = {
        "object": "model",
        "created": created,
        "owned_by": "antiphon",
        "root": entry.root,
        "parent": entry.parent,
        "max_model_len": context,
        "input_modalities": None if entry.card is None else ["text", *sorted(entry.card.capabilities.media)],
        "tasks": None if entry.card is None else sorted(entry.card.capabilities.tasks),
    }
    anthropic = {
        "type": "model",
        "display_name": entry.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "max_input_tokens": context,
        "max_tokens": context,
        "capabilities": None,
    }
    return {"id": entry.name, **openai, **anthropic}
