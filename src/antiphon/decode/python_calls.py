"""Reads calls written as Python: `[f(a=1, b="x"), g()]`, or `f(a=1)` one after another.

The arguments are streamed as JSON. A call is committed once its first argument's
name, or the end of its empty arguments, is read: until then it may be plain text.
Positional arguments are not supported.
"""

import re

from antiphon.core.grammar import PythonCalls
from antiphon.core.json_scanner import JsonScanner
from antiphon.decode.arguments.python import PythonArguments
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_NAME, PUNCTUATION, plain_name
from antiphon.decode.lexer import Lexer
from antiphon.decode.phases import PhaseReader
from antiphon.decode.readers import RETRACT, Step

_NAME = re.compile(rf"[^\s\"'<>{{}}()\[\],;=|{PUNCTUATION}]*")


class PythonCallsReader(PhaseReader):
    """Reads one list of calls, or calls in a row. `closers` find the markers that may follow."""

    def __init__(self, state: PythonCalls, closers: Lexer, builder: EventBuilder) -> None:
        super().__init__(self._open, state.then, closers, builder)
        self._state = state
        self._in_list = state.opening == "["
        self._final = False
        self._name = ""
        self._begin_call()

    def _begin_call(self) -> None:
        self._arguments = PythonArguments(self._builder.names_of(self._name))
        self._arguments.final = self._final
        self._written = JsonScanner()  # Python's escapes may be of half characters

    def feed(self, text: str) -> Step | None:
        """Run phases. What has too long an opening is no call."""
        step = super().feed(text)
        return Step(RETRACT, "") if step is None and self._builder.over_limit else step

    def _finish(self, text: str) -> Step | None:
        """The model stopped inside or between calls."""
        self._final = self._arguments.final = True
        step = self.feed(text)
        if step is not None:
            return step
        if self._builder.provisional:
            is_call = self._phase == self._begin_arguments or self._builder.in_list
            return None if is_call else Step(RETRACT, "")
        if self._phase == self._break:
            self._builder.broken_arguments("", self._held, self._broken)
        else:
            self._builder.arguments(self._as_json([self._arguments.last()]), self._held)
        return None

    # Phases

    def _open(self, text: str) -> Step | str | None:
        """Before the first call."""
        text = self._skip(text)
        if text.startswith("[") and not self._in_list:
            self._in_list = True
            self._builder.markup("[")
            return text[1:]
        if text:
            self._phase = self._read_name
        return text

    def _read_name(self, text: str) -> Step | str | None:
        """The function's name, up to the parenthesis."""
        run = _NAME.match(text)
        assert run is not None
        self._name += run[0]
        rest = text[run.end() :]
        self._builder.markup(run[0])
        if len(self._name) > MAX_NAME or (rest and not self._opens(rest[0])):
            return Step(RETRACT, rest)
        if rest:
            self._builder.markup("(")
            self._begin_call()
            self._phase = self._begin_arguments
        return rest[1:]

    def _opens(self, char: str) -> bool:
        header = plain_name(self._name)
        return char == "(" and header is not None and self._builder.accepts(header.name, self._state.names)

    def _begin_arguments(self, text: str) -> Step | str | None:
        """Up to the first argument's name, or the end."""
        out: list[str] = []
        end = self._arguments.feed(text, 0, out)
        self._builder.markup(text[:end])
        if self._arguments.broken:
            return Step(RETRACT, text[end:])
        if self._arguments.is_call:
            self._builder.name_call(self._name)
            self._builder.arguments(self._as_json(out), "")
            self._phase = self._stream
            self._end_call()
        return text[end:]

    def _stream(self, text: str) -> Step | str | None:
        """The arguments, streamed."""
        out: list[str] = []
        end = self._arguments.feed(text, 0, out)
        self._builder.arguments(self._as_json(out), text[:end])
        if self._arguments.waits:
            self._held = text[end:]
            return None
        if self._arguments.broken:
            self._broken = f"the arguments are not Python literals: {self._arguments.broken}"
            self._builder.broken_arguments(self._arguments.rest(), "", self._broken)
            self._phase = self._break
        self._end_call()
        return text[end:]

    def _end_call(self) -> None:
        if self._arguments.done:
            self._builder.end_call()
            self._phase = self._between

    def _between(self, text: str) -> Step | str | None:
        """After a call: another, or the end."""
        rest = text.lstrip(" \t\r\n,;")
        self._builder.markup(text[: len(text) - len(rest)])
        if not rest:
            return None
        if self._in_list and rest[0] == "]":
            self._builder.markup("]")
            return Step(self._then, rest[1:])
        if not _NAME.match(rest[0])[0]:  # type: ignore[index]  # it may be empty, never missing
            return Step(self._then, rest)
        self._builder.begin_provisional(None)
        self._name = ""
        self._phase = self._read_name
        return rest

    def _as_json(self, pieces: list[str]) -> str:
        """More of the arguments as JSON."""
        out: list[str] = []
        self._written.feed("".join(pieces), 0, out)
        return "".join(out)

    def _skip(self, text: str) -> str:
        body = text.lstrip()
        self._builder.markup(text[: len(text) - len(body)])
        return body
