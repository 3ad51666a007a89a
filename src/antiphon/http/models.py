"""GET /v1/models and /v1/models/{id}, HEAD /, /health, /version."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from antiphon import __version__
from antiphon.http.request import Query, app_of
from antiphon.run.models import Health, Models


async def list_models(request: Request) -> JSONResponse:
    """Every name that requests may use, or part of them, in the shapes of both OpenAI and Anthropic."""
    models, query = app_of(request).models, Query(request.query_params)
    names = models.names
    after, before = query.text("after_id"), query.text("before_id")
    first = names.index(after) + 1 if after in names else 0
    last = names.index(before) if before in names else len(names)
    limit = query.number("limit", len(names) or 1, least=1, most=1000)
    page = names[max(first, last - limit) : last] if before else names[first : first + limit]
    return JSONResponse(
        {
            "object": "list",
            "data": [await _model(models, name) for name in page],
            "has_more": len(page) < last - first,
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        }
    )


async def retrieve_model(request: Request) -> JSONResponse:
    """One model by its name, which may hold slashes."""
    return JSONResponse(await _model(app_of(request).models, request.path_params["model"]))


async def reachable(request: Request) -> Response:
    """There is a server here: some clients ask before their first request."""
    return Response()


async def health(request: Request) -> JSONResponse:
    """200 once the server can answer, 503 before and while it shuts down."""
    app = app_of(request)
    opening = app.models.health is Health.READY and not app.storage.started
    now = Health.LOADING if opening else app.models.health
    return JSONResponse({"status": now}, 200 if now is Health.READY else 503)


async def version(request: Request) -> JSONResponse:
    """The version of Antiphon."""
    return JSONResponse({"version": __version__})


async def _model(models: Models, name: str) -> dict[str, Any]:
    card = (await models.model(name)).card
    openai = {
        "object": "model",
        "created": card.created,
        "owned_by": "antiphon",
        "max_model_len": card.context or None,
        "input_modalities": ["text", *sorted(card.capabilities.media)],
    }
    anthropic = {
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z"),
        "max_input_tokens": card.context or None,
        "max_tokens": card.context or None,
        "capabilities": None,
    }
    return {"id": name, **openai, **anthropic}
