"""A server in a replica of Ray Serve: started in its constructor, ended in its destructor.

Ray counts a replica as running once its constructor has returned: then the models are loaded. It stops one by
sending it no more requests, waits until those that run have ended, at most for --drain-seconds, and calls the
destructor, which gives the leases of background responses back, so that other replicas continue them at once.
"""

import asyncio
import logging
import os
from collections.abc import Sequence

import ray
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.compose import Runtime, compose
from antiphon.config import Settings
from antiphon.core.errors import EngineError
from antiphon.engines.upstream import Options as AtUrl
from antiphon.http.app import build
from antiphon.http.models import follow_siblings
from antiphon.http.request import REQUEST_ID
from antiphon.http.server import trim_forever, tune, tune_gc
from antiphon.log import configure
from antiphon.ray.options import settings_of
from antiphon.ray.scaling import LOAD
from antiphon.ray.siblings import Replicas, answered
from antiphon.run.bounded import warm
from antiphon.run.loading import ModelStatus


@serve.ingress()
class Replica:
    """The server. Ray calls `check_health`, `record_autoscaling_stats` and `__del__`."""

    _runtime: Runtime | None = None

    async def __init__(self, tokens: Sequence[str]) -> None:  # type: ignore[misc]
        """Start with these options of `antiphon serve`. Raises AntiphonError if that cannot be done."""
        # vLLM tells its own processes only if it chooses itself how they are started.
        os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        settings = settings_of(tokens)
        tune()
        configure(settings.log_level, settings.log_format)
        log_as_server()
        context = serve.get_replica_context()
        runtime = compose(
            settings,
            siblings=Replicas(lambda: serve.get_deployment_handle(context.deployment, context.app_name)),
        )
        self._models = runtime.app.models
        self._own_models = has_own_models(settings)
        await runtime.start()
        self._runtime = runtime
        tune_gc()
        warm()
        runtime.app.metrics.delay.watch(asyncio.get_running_loop())
        self._tasks = [asyncio.create_task(work) for work in (trim_forever(), follow_siblings(runtime.app))]

    def __serve_build_asgi_app__(self) -> ASGIApp:
        assert self._runtime is not None
        return WithoutRequestId(build(self._runtime.app))

    async def check_health(self) -> None:
        """Raise EngineError when another replica would do better: no model runs here that could run again."""
        states = await self._models.states()
        if (
            self._own_models
            and states
            and all(state.status is ModelStatus.FAILED for state in states.values())
        ):
            raise EngineError("No model of this replica can be used. It is replaced.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The load of the engine that has most to do, where 1 is as much as it has slots for."""
        loads = [load for load in self._models.loads.values() if load.slots]
        return {LOAD: max(((load.running + load.waiting) / load.slots for load in loads), default=0.0)}

    async def answer_sibling(self, name: str, body: bytes) -> bytes:
        """Answer another replica."""
        assert self._runtime is not None
        return await answered(self._runtime.app, name, body)

    async def __del__(self) -> None:
        """End: leases first, so that other replicas continue at once; the store last."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await runtime.worker.release()
        await runtime.app.models.stop()
        await runtime.stop()


class WithoutRequestId:
    """Leaves out the id of the request in responses: Ray adds it, with the same value."""

    def __init__(self, asgi: ASGIApp) -> None:
        self._asgi = asgi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [header for header in message["headers"] if header[0] != REQUEST_ID]
                message = {**message, "headers": headers}
            await send(message)

        await self._asgi(scope, receive, without)


def has_own_models(settings: Settings) -> bool:
    """Whether a model runs in the replica; others are at URLs, and a new replica would not cure them."""
    engines = [engine for model in settings.served for engine in model.engines]
    return not all(isinstance(engine, AtUrl) for engine in engines)


def log_as_server() -> None:
    """Give the lines of Ray Serve on stderr the form of the server's own; its files keep theirs."""
    [own, *_] = logging.getLogger().handlers
    for handler in logging.getLogger("ray.serve").handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(own.formatter)
