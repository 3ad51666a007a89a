"""GET /v1/models and /v1/models/{id}, /health, /version."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from antiphon import __version__
from antiphon.http.request import app_of
from antiphon.run.models import Health, Service


async def list_models(request: Request) -> JSONResponse:
    """Every name that requests may use."""
    service = app_of(request).models
    return JSONResponse({"object": "list", "data": [_model(service, name) for name in service.names]})


async def retrieve_model(request: Request) -> JSONResponse:
    """One model by its name, which may hold slashes."""
    return JSONResponse(_model(app_of(request).models, request.path_params["model"]))


async def health(request: Request) -> JSONResponse:
    """200 once the server can answer, 503 before and while it shuts down."""
    app = app_of(request)
    opening = app.models.health is Health.READY and not app.storage.started
    now = Health.LOADING if opening else app.models.health
    return JSONResponse({"status": now}, 200 if now is Health.READY else 503)


async def version(request: Request) -> JSONResponse:
    """The version of Antiphon."""
    return JSONResponse({"version": __version__})


def _model(service: Service, name: str) -> dict[str, Any]:
    card = service.model(name).card
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": "antiphon",
        "max_model_len": card.context,
    }
