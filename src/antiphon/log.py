"""Logging: structlog to stderr, one line an event, tracebacks only here.

Other libraries log by `logging`: their warnings become lines of the same form.
"""

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor

from antiphon.core.errors import AntiphonError

_log = structlog.get_logger(__name__)


def configure(level: str, form: str = "console") -> None:
    """Log events of `level` (debug, info, warning or error) and worse, for people (console) or as JSON."""
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    last = _json() if form == "json" else _console()
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    foreign: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_message,
        *shared,
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[remove, *last], foreign_pre_chain=foreign)
    )
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)


def _without_message(_logger: object, _method: str, event: EventDict) -> EventDict:
    """The event without what other handlers have noted on its record: the same text, and a time."""
    event.pop("message", None)
    event.pop("asctime", None)
    return event


def _console() -> list[Processor]:
    colors = sys.stderr.isatty()
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def log_failure(error: BaseException, **more: object) -> None:
    """Log why an answer, or a request, came to nothing, and `more` of it.

    Failures of the server are logged with their causes. What was only refused, or given up by its
    client, is one line, for whoever looks for it.
    """
    expected = isinstance(error, AntiphonError) and error.status != AntiphonError.status
    if expected or getattr(error, "expected", False):
        _log.debug("request refused", error=str(error), param=getattr(error, "param", None), **more)
    else:
        _log.error("request failed", error=str(error), exc_info=error, **more)
