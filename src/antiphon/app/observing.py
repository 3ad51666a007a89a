"""Records observations of one request, one turn, or one background response.

    observation = begin(app, request_id, name)
    … all code may add to it, see `core/observation.py` …
    end(app, observation, "request", {"status": 200})

The end settles the tokens of the key, writes a log line, counts for /metrics, and ends the span of the
trace.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from antiphon.app.app import App
from antiphon.core.observation import OBSERVATION, Observation

NO_TRACE: Mapping[str, str] = MappingProxyType({})


def begin(app: App, request_id: str, name: str, trace: Mapping[str, str] = NO_TRACE) -> Observation:
    """Observe this task from now on, and the tasks that it starts; `name` is that of the span.

    `trace` holds the headers of W3C Trace Context of a request.
    """
    observation = Observation(request_id, trace=trace, content=app.settings.log_content)
    if app.settings.debug_answers:
        observation.record = partial(app.records.add, observation, app.settings.debug_answers)
    # Never reset: the error handlers are outside of this code, and each request has its own task.
    OBSERVATION.set(observation)
    app.tracing.begin(observation, name)
    return observation


def end(
    app: App,
    observation: Observation,
    event: str,
    known: Mapping[str, object] = MappingProxyType({}),
    *,
    quiet: bool = False,
) -> None:
    """Log the end, with the `known` values; `quiet`, with --log-level debug only."""
    observation.account.settle(observation.reserved, observation.used)
    app.metrics.answer(observation)
    app.tracing.end(observation, known)
    write = app.log.debug if quiet else app.log.info
    write(event, **observation.summary(known))
