"""The ASGI application: routes, errors and middleware, assembled in one place."""

from collections.abc import Iterable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from antiphon.config import MAX_BODY_BYTES
from antiphon.core.errors import AntiphonError
from antiphon.http.auth import KeyMiddleware
from antiphon.http.chat import create_chat_completion
from antiphon.http.errors import on_antiphon_error, on_exception, on_http_exception
from antiphon.http.models import health, list_models, retrieve_model, version
from antiphon.run.service import Service


def build(service: Service, *, keys: Iterable[str] = (), max_body_bytes: int = MAX_BODY_BYTES) -> Starlette:
    """The application that serves the models of `service`. The caller starts and stops it."""
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{model:path}", retrieve_model),
            Route("/health", health),
            Route("/version", version),
        ],
        middleware=[Middleware(KeyMiddleware, keys=tuple(keys))],
        exception_handlers={
            AntiphonError: on_antiphon_error,
            HTTPException: on_http_exception,
            Exception: on_exception,
        },
    )
    app.state.service = service
    app.state.max_body_bytes = max_body_bytes
    return app
