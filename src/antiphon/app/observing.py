"""Records observations of one request, one turn, or one background response.

    observation = begin(app, request_id, name)
    … whoever works for it notes what it does, see `core/observation.py` …
    end(app, observation, "request", status=200)

The end settles what its key has used, writes a log line, counts for /metrics, and ends the span of the trace.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import structlog

from antiphon.app.app import App
from antiphon.core.observation import OBSERVATION, Observation

NO_TRACE: Mapping[str, str] = MappingProxyType({})

log = structlog.get_logger()


def begin(app: App, request_id: str, name: str, trace: Mapping[str, str] = NO_TRACE) -> Observation:
    """Observe what this task does from now on, and the tasks that it starts; `name` is that of the span.

    `trace` holds the headers of W3C Trace Context that came with a request.
    """
    observation = Observation(request_id, trace=trace, content=app.options.log_content)
    if app.options.debug_answers:
        observation.record = partial(app.records.add, observation, app.options.debug_answers)
    # Never reset: what handles errors is outside of all this, and each request has a task of its own.
    OBSERVATION.set(observation)
    app.tracing.begin(observation, name)
    return observation


def end(app: App, observation: Observation, event: str, *, quiet: bool = False, **known: object) -> None:
    """Write how it ended, and what is `known` of it besides; `quiet`, with --log-level debug only."""
    observation.account.settle(observation.reserved, observation.used)
    app.metrics.answer(observation)
    app.tracing.end(observation, known)
    write = log.debug if quiet else log.info
    write(event, **known, **observation.summary())
