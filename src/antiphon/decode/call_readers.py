"""Readers of the parts of calls: headers, keys, values, and all arguments as one JSON object.

See `readers.py` for the protocol of readers.
"""

from collections.abc import Callable

import msgspec

from antiphon.core.grammar import ArgumentKey, Key, Name, TextArguments, Trim, Value
from antiphon.core.json_scanner import JsonScanner
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.lexer import Lexer, MarkerMatch
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.until_marker import ShortTextReader, UntilMarkerReader

MAX_COLLECTED = 256 * 1024
"""Characters of arguments that must be complete before they can be parsed."""
NO_OBJECT = "the arguments are not an object"


class NameReader(ShortTextReader):
    """Reads the header of a call. A header that names no function opens no call."""

    def __init__(self, state: Name, lexer: Lexer, builder: EventBuilder) -> None:
        super().__init__(lexer, builder, state.words)
        self._state = state
        self._to = {**state.habits, **state.on}

    def _parse(self, header: str, marker: str, rest: str) -> Step | None:
        named = self._state.parse(header)
        if named is None or not self._builder.accepts(named.name, self._state.names):
            return None
        self._builder.markup(header)
        self._builder.name_call(named.name, named.call_id)
        if marker in self._state.peek:
            return Step(self._state.peek[marker], marker + rest)
        return Step(self._to[marker], rest, marker)


class KeyReader(ShortTextReader):
    """Reads the name of an argument. Without one the call is malformed."""

    def __init__(self, state: Key, lexer: Lexer, builder: EventBuilder) -> None:
        super().__init__(lexer, builder)
        self._state = state

    def _parse(self, header: str, marker: str, rest: str) -> Step | None:
        keyed = self._state.parse(header)
        if keyed is None:
            return None
        self._builder.key(keyed, header)
        return Step(self._state.on[marker], rest, marker)

    def _reject(self, text: str) -> Step:
        self._builder.fail_call("an argument without a name")
        return Step(RETRACT, text)

    def _end_of_input(self) -> Step | None:
        self._builder.markup(self._held)  # a key without a value: the call was truncated
        return None


class ValueReader(UntilMarkerReader):
    """Reads the value of an argument, and streams it."""

    def __init__(self, state: Value, lexer: Lexer, builder: EventBuilder) -> None:
        super().__init__(lexer, builder)
        self._state = state
        self._trims = state.trim is Trim.NEWLINE
        self._begun = not self._trims

    def _read(self, text: str, found: MarkerMatch) -> Step | None:
        body = text[: found.start]
        if not self._begun and body:
            self._begun = True
            if body[0] == "\n":
                self._builder.value("", "\n")
                body = body[1:]
        value = body.removesuffix("\n") if self._trims else body
        self._builder.value(value, value)
        if not found.marker:
            self._held = body[len(value) :] + text[found.start :]
            return None
        self._builder.end_value(body[len(value) :])
        return Step(self._state.on[found.marker], text[found.end :], found.marker)

    def _end_of_input(self) -> Step | None:
        self._builder.value("", self._held)  # the value was truncated, maybe in the marker after it
        return None


class TextArgumentsReader(ValueReader):
    """Reads all arguments of a call as one text."""

    def __init__(self, state: TextArguments, lexer: Lexer, builder: EventBuilder) -> None:
        super().__init__(Value(state.on), lexer, builder)
        builder.key(ArgumentKey(state.key, "string"), "")

    def _end_of_input(self) -> Step | None:
        self._builder.value(self._held, self._held)  # the end of the answer is that of the text
        return None


class JsonArgumentsReader:
    """Reads the arguments of a call as one JSON object, and streams them verbatim.

    `closers` find the markers that may follow. If the JSON is malformed, all text up
    to one of them becomes arguments of an incomplete call, so no text is lost.
    """

    def __init__(
        self,
        then: str,
        closers: Lexer,
        builder: EventBuilder,
        scanner: Callable[[], JsonScanner] = JsonScanner,
    ) -> None:
        self._then = then
        self._closers = closers
        self._builder = builder
        self._scanner = scanner()
        self._phase = self._begin
        self._collected: list[str] = []
        self._size = 0
        self._held = ""
        self._broken = "the call was truncated"

    def feed(self, text: str) -> Step | None:
        """Read more text; the step is returned directly after the object."""
        text, self._held = self._held + text, ""
        step = None
        while text and step is None:
            phase = self._phase
            step, text = phase(text)
            if phase == self._phase:
                break
        return step

    def finish(self, text: str) -> Step | None:
        """The model stopped inside the arguments."""
        step = self.feed(text)
        if step is None:
            shown = "" if self._phase == self._begin else "".join(self._collected) + self._held
            self._builder.broken_arguments(shown, self._held, self._broken)
            self._builder.fail_call(self._broken)
        return step

    # Phases: each returns a step at the end, or the text for the next phase.

    def _begin(self, text: str) -> tuple[Step | None, str]:
        """Before the object: space, or a closing marker, which means no arguments."""
        body = text.lstrip()
        found = self._closers.find(body)
        if not body or (found and found.start == 0 and not found.marker):
            self._held = text
            return None, ""
        self._builder.markup(text[: len(text) - len(body)])
        if found and found.start == 0:
            return self._end("{}", body), ""
        self._phase = self._stream if body[0] == "{" else self._collect
        return None, body

    def _stream(self, text: str) -> tuple[Step | None, str]:
        out: list[str] = []
        end = self._scanner.feed(text, 0, out)
        self._builder.arguments("".join(out), text[:end])
        return self._after(text[end:])

    def _collect(self, text: str) -> tuple[Step | None, str]:
        """Not an object: models write a string that contains one, or null for no arguments."""
        end = self._scanner.feed(text, 0, self._collected)
        self._builder.arguments("", text[:end])
        self._size += end
        if self._scanner.done:
            return self._end_collected("".join(self._collected), text[end:]), ""
        if self._size > MAX_COLLECTED:
            self._break("the arguments are too long for a string that contains an object")
        return self._after(text[end:])

    def _end_collected(self, value: str, rest: str) -> Step:
        text = as_object(value)
        if text is not None:
            return self._end(text, rest)
        self._builder.broken_arguments(value, "", NO_OBJECT)
        self._builder.fail_call(NO_OBJECT)
        return Step(self._then, rest)

    def _after(self, rest: str) -> tuple[Step | None, str]:
        if self._scanner.broken:
            self._break(f"the arguments are not valid JSON: {self._scanner.broken}")
        elif self._scanner.done and self._phase == self._stream:
            return self._end("", rest), ""
        return None, rest

    def _skip(self, text: str) -> tuple[Step | None, str]:
        """After malformed JSON: all text up to a marker."""
        found = self._closers.find(text)
        end = len(text) if found is None else found.start
        self._builder.broken_arguments(text[:end], text[:end], self._broken)
        if found is None or not found.marker:
            self._held = text[end:]
            return None, ""
        self._builder.fail_call(self._broken)
        return Step(self._then, text[end:]), ""

    def _break(self, why: str) -> None:
        self._broken = why
        self._phase = self._skip
        if self._collected:
            self._builder.broken_arguments("".join(self._collected), "", why)
            self._collected.clear()

    def _end(self, more: str, rest: str) -> Step:
        self._builder.arguments(more, "")
        self._builder.end_call()
        return Step(self._then, rest)


def as_object(value: str) -> str | None:
    """The text of an object, if the arguments are a string that contains one, or null."""
    if value.startswith('"'):
        value = msgspec.json.decode(value, type=str).strip()
    if value in ("", "null"):
        return "{}"
    out: list[str] = []
    scanner = JsonScanner()
    end = scanner.feed(value, 0, out) if value.startswith("{") else -1
    return "".join(out) if scanner.done and end == len(value) else None
