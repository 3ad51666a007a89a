"""Logging: structlog to stderr, one line an event, tracebacks only here.

Other libraries log by `logging`: their warnings become lines of the same form.
"""

import logging
import re
import sys
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

import structlog
from structlog.dev import ConsoleRenderer, KeyValueColumnFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from antiphon.core.errors import AntiphonError, ReportedError
from antiphon.core.observation import OBSERVATION

_log = structlog.get_logger(__name__)

_EVENT_WIDTH = 30
LONGEST = 2_000
"""Characters of a text in a line, which a client may have made up, unless contents are to be logged."""
_RARE = frozenset({"exc_info", "exception", "stack", "logger", "logger_name"})
"""Keys that need several lines, or come from other libraries."""
_SIGNS = re.compile("[ ='\"]")
"""A text with one of them is quoted."""


def configure(level: str, form: str = "console", process: int | None = None) -> None:
    """Log events of `level` (debug, info, warning or error) and worse, for people (console) or as JSON.

    A line of one of several processes has its number.
    """
    min_level = logging.getLevelNamesMapping()[level.upper()]
    lines = _Lines(sys.stderr)
    head: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        with_request,
        _shortened,
    ]
    if process is not None:
        head.append(partial(_with_process, process))
    renderers = _json() if form == "json" else [_console(sys.stderr.isatty())]
    structlog.configure(
        processors=[*head, *renderers],
        wrapper_class=_logger_class(min_level),
        logger_factory=lambda *_: lines,
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    foreign: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_message,
        *head,
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[remove, *renderers], foreign_pre_chain=foreign)
    )
    logging.basicConfig(handlers=[handler], level=max(min_level, logging.WARNING), force=True)


def _logger_class(min_level: int) -> type[structlog.typing.FilteringBoundLogger]:
    """The logger of structlog for this level, whose `info` passes the fields on in one step.

    structlog copies them four times on their way to the processors, and there is a line for each request:
    without this, a full answer takes 4 % more instructions (target 3 of the bench).
    """
    usual = structlog.make_filtering_bound_logger(min_level)
    if min_level > logging.INFO:
        return usual

    class Logger(usual):  # type: ignore[misc, valid-type]
        def info(self, event: str, /, **fields: Any) -> None:
            if self._context:
                fields = {**self._context, **fields}
            fields["event"] = event
            line = fields
            try:
                for process in self._processors:
                    line = process(self._logger, "info", line)
                self._logger.info(line)
            except structlog.DropEvent:
                pass

    return Logger


def with_request(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The event with the request that it belongs to."""
    observation = OBSERVATION.get()
    if observation is not None and observation.request_id:
        event.setdefault("request_id", observation.request_id)
    return event


def _shortened(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The event with only the beginnings of long texts, unless contents are to be logged."""
    observation = OBSERVATION.get()
    if observation is None or not observation.content:
        for name, value in event.items():
            if type(value) is str and len(value) > LONGEST:
                event[name] = f"{value[:LONGEST]}… ({len(value)} characters)"
    return event


def _with_process(process: int, _logger: object, _method: str, event: EventDict) -> EventDict:
    """The event with the process of the server that logs it."""
    event["process"] = process
    return event


def _without_message(_logger: object, _method: str, event: EventDict) -> EventDict:
    """The event without the fields of other handlers on its record: the same text, and a time."""
    event.pop("message", None)
    event.pop("asctime", None)
    return event


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _console(colors: bool) -> Processor:
    """The renderer of structlog for consoles, which also quotes what cannot be seen."""
    renderer = ConsoleRenderer(
        colors=colors, pad_event_to=_EVENT_WIDTH, exception_formatter=structlog.dev.plain_traceback
    )
    fields = renderer.columns[0].formatter
    assert isinstance(fields, KeyValueColumnFormatter)
    fields.value_repr = _shown

    def plain(logger: WrappedLogger, method: str, event: EventDict) -> str:
        """The same line, in a fifth of the time: without this, a full answer takes 20 % more (target 3)."""
        if not _RARE.isdisjoint(event):
            return renderer(logger, method, event)
        head = f"{event.pop('timestamp')} [{event.pop('level'):9}] {event.pop('event'):{_EVENT_WIDTH}} "
        return (head + " ".join([f"{name}={_shown(event[name])}" for name in sorted(event)])).rstrip(" ")

    return renderer if colors else plain


def _shown(value: object) -> str:
    """A value in a line: a text that is not read as one value, whatever a client put into it, is quoted."""
    if isinstance(value, str) and value.isprintable() and not _SIGNS.search(value):
        return value
    return repr(value)


class _Lines:
    """Writes lines to a file; they are lost if its reader is gone, as with a closed terminal."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def msg(self, message: str) -> None:
        """Write a line, if that can be done."""
        try:  # noqa: SIM105 - there is a line for each request
            self._file.write(f"{message}\n")  # stderr is flushed after each line
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = msg


def say(*lines: str) -> None:
    """Print lines for the operator; do nothing if there is no reader."""
    # In a signal handler, another line may be half written: that is a RuntimeError.
    with suppress(OSError, ValueError, RuntimeError):
        print(*lines, sep="\n", flush=True)


def log_failure(error: BaseException, **more: object) -> None:
    """Log why an answer, or a request, failed, with further fields.

    Failures of the server are logged with their causes; of a `ReportedError` the text is enough. A refused
    request, or one that its client cancelled, is a single line.
    """
    expected = isinstance(error, AntiphonError) and error.status != AntiphonError.status
    if expected or getattr(error, "expected", False):
        _log.debug("request refused", error=str(error), param=getattr(error, "param", None), **more)
    elif isinstance(error.__cause__, ReportedError):
        _log.error("request failed", error=str(error), cause=str(error.__cause__), **more)
    else:
        _log.error("request failed", error=str(error), exc_info=error, **more)
