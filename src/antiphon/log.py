"""Logging: structlog to stderr, one line an event, tracebacks only here."""

import logging
import sys

import structlog

from antiphon.core.errors import AntiphonError

_log = structlog.get_logger(__name__)


def configure(level: str) -> None:
    """Log events of `level` (debug, info, warning or error) and worse."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


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
