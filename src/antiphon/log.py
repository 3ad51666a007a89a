"""Logging: structlog to stderr, one line an event, tracebacks only here.

Other libraries log by `logging`: their warnings become lines of the same form.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from time import time_ns
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from antiphon.core.errors import AntiphonError, ReportedError
from antiphon.core.observation import OBSERVATION

_log = structlog.get_logger(__name__)

_EVENT_WIDTH = 30
_LEVEL_WIDTH = 9
LONGEST = 2_000
"""Characters of a text in a line, which a client may have made up, unless contents are to be logged."""
_LEVELS = {"warn": "warning", "exception": "error", "fatal": "critical"}
"""Other names of methods of a logger."""
_RARE = frozenset({"exc_info", "exception", "stack", "logger", "logger_name"})
"""Keys that need several lines, or come from other libraries."""
_HEAD = frozenset({"timestamp", "level", "event"})
"""What a line begins with."""
_SHOWN_AS_IS = frozenset({str, int, float, bool, type(None)})
"""Types whose `repr` is their `str`, apart from texts, which may need quotes."""
_SIGNS = " ='\""
"""A text with one of them is quoted."""
_PLAIN = bytes({*range(0x20, 0x7F)} - {*_SIGNS.encode()})
"""All other characters of ASCII that can be seen."""


def configure(level: str, form: str = "console") -> None:
    """Log events of `level` (debug, info, warning or error) and worse, for people (console) or as JSON."""
    least = logging.getLevelNamesMapping()[level.upper()]
    last, lines = _json() if form == "json" else _console(), _Lines(sys.stderr)
    structlog.configure(
        processors=[with_context, *last],
        wrapper_class=_logger_class(least),
        logger_factory=lambda *_: lines,
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    foreign: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_message,
        with_context,
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[remove, *last], foreign_pre_chain=foreign)
    )
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)


def _logger_class(least: int) -> type[structlog.typing.FilteringBoundLogger]:
    """The logger of structlog for this level, whose `info` passes the fields on in one step.

    structlog copies them four times on their way to the processors, and there is a line for each request.
    """
    usual = structlog.make_filtering_bound_logger(least)
    if least > logging.INFO:
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


def with_context(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The event with its level, its time, and the request that it belongs to."""
    event["level"] = _LEVELS.get(method, method)
    event["timestamp"] = _now()
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


def _now() -> str:
    """The time in UTC, as ISO 8601."""
    whole, part = divmod(time_ns(), 10**9)
    return f"{_second(whole)}.{part // 1000:06}Z"


@lru_cache(1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


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


def _without_message(_logger: object, _method: str, event: EventDict) -> EventDict:
    """The event without the fields of other handlers on its record: the same text, and a time."""
    event.pop("message", None)
    event.pop("asctime", None)
    return event


def _console() -> list[Processor]:
    colors = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=_EVENT_WIDTH, exception_formatter=structlog.dev.plain_traceback
    )
    return [_shortened, renderer] if colors else [_PlainRenderer(renderer)]


class _PlainRenderer:
    """Writes the same as structlog's renderer for consoles without colors, after `_shortened`.

    There is a line for each request: nearly all are made in one step, in a tenth of the time. Values with
    characters that cannot be seen are quoted, too. `renderer` writes events with other fields.
    """

    def __init__(self, renderer: structlog.dev.ConsoleRenderer) -> None:
        self._renderer = renderer

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        """See `Processor`."""
        layout = _layout(tuple(event))
        if layout is None:
            return self._renderer(logger, method, _shortened(logger, method, event))
        names, values_of, form, signs = layout
        values = values_of(event)
        pairs = form % values if _SHOWN_AS_IS.issuperset(map(type, values)) else ""
        # If a value has a space, or another of the signs, the texts of all values are looked at.
        if not pairs.isascii() or pairs.encode().translate(None, _PLAIN) != signs or len(pairs) > LONGEST:
            event = _shortened(logger, method, event)
            pairs = " ".join([f"{name}={_shown(event[name])}" for name in names])
        head = f"{event['timestamp']} [{event['level'].ljust(_LEVEL_WIDTH)}] "
        return f"{head}{event['event'].ljust(_EVENT_WIDTH)} {pairs}".rstrip(" ")


_Layout = tuple[list[str], Callable[[EventDict], tuple[Any, ...]], str, bytes]
"""The names of fields in their order, what reads their values, the text that these are put into, and the
signs that are between plain ones."""


@lru_cache(256)
def _layout(keys: tuple[str, ...]) -> _Layout | None:
    """The layout of the fields after the head of a line; None if there are others."""
    if not _RARE.isdisjoint(keys) or "timestamp" not in keys:
        return None
    names = sorted({*keys} - _HEAD)
    values_of = itemgetter(*names) if len(names) > 1 else lambda event: tuple([event[each] for each in names])
    return names, values_of, " ".join([f"{name}=%s" for name in names]), b" ".join([b"="] * len(names))


def _shown(value: object) -> str:
    """A value in a line: a text that is not read as one value, whatever a client put into it, is quoted."""
    if type(value) is str and value.isprintable() and not any(sign in value for sign in _SIGNS):
        return value
    return repr(value)


def _json() -> list[Processor]:
    return [_shortened, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


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
