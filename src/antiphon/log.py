"""Logging: structlog to stderr, one line an event, tracebacks only here.

Other libraries log by `logging`: their warnings become lines of the same form.
"""

import logging
import re
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from antiphon.core.errors import AntiphonError

_log = structlog.get_logger(__name__)

_EVENT_WIDTH = 30
_LEVEL_WIDTH = 9
_RARE = frozenset({"exc_info", "exception", "stack", "logger", "logger_name"})
"""What makes a line more than one, or comes from other libraries."""
_NEEDS_QUOTES = re.compile(r"[\s='\"]")


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
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Unfailing(sys.stderr))),
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


class _Unfailing:
    """A file whose reader may be gone, such as a closed terminal: lines are lost then, no more."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write the text, if that can be done."""
        with suppress(OSError, ValueError):
            self._file.write(text)

    def flush(self) -> None:
        """See `write`."""
        with suppress(OSError, ValueError):
            self._file.flush()


def say(*lines: str) -> None:
    """Print lines for whoever has started the program; to nobody if nobody reads them."""
    # In a handler of signals, another line may be half written: that is a RuntimeError.
    with suppress(OSError, ValueError, RuntimeError):
        print(*lines, sep="\n", flush=True)


def _without_message(_logger: object, _method: str, event: EventDict) -> EventDict:
    """The event without what other handlers have noted on its record: the same text, and a time."""
    event.pop("message", None)
    event.pop("asctime", None)
    return event


def _console() -> list[Processor]:
    colors = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=_EVENT_WIDTH, exception_formatter=structlog.dev.plain_traceback
    )
    return [renderer] if colors else [_PlainRenderer(renderer)]


class _PlainRenderer:
    """Writes what structlog's renderer for consoles writes without colors, in 6 µs where that takes 23.

    There is a line for each request. `renderer` writes what is rare.
    """

    def __init__(self, renderer: structlog.dev.ConsoleRenderer) -> None:
        self._renderer = renderer

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        """See `Processor`."""
        if not _RARE.isdisjoint(event) or "timestamp" not in event:
            return self._renderer(logger, method, event)
        timestamp, level, text = event.pop("timestamp"), event.pop("level"), event.pop("event")
        head = f"{timestamp} [{level:<{_LEVEL_WIDTH}}] {text:<{_EVENT_WIDTH}}"
        pairs = [f"{name}={_written(value)}" for name, value in sorted(event.items())]
        return " ".join((head, *pairs)).rstrip(" ")


def _written(value: Any) -> str:
    """A value that is seen as one, whatever a client made it of."""
    if type(value) is str and value.isprintable() and not _NEEDS_QUOTES.search(value):
        return value
    return repr(value)


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
