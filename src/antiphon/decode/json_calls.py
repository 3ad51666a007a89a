"""Reads calls written as JSON: `{"name": …, "arguments": {…}}`, alone or in an array.

Arguments stream as they are written, verbatim, once the name is known. If they
come before the name they wait for it, within the sink's limit. A call whose
JSON breaks before its name is known was no call; one that breaks later is
incomplete, and what follows up to the closing marker counts as its arguments,
so that nothing is lost.
"""

from collections.abc import Callable

import msgspec

from antiphon.core.grammar import JsonCalls
from antiphon.decode.json_scanner import JsonScanner
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.sink import Sink

_SPACE = " \t\r\n"


class JsonCallsReader:
    """Reads one JSON value made of calls. `closers` are the markers that may follow it."""

    def __init__(self, state: JsonCalls, closers: Lexer, sink: Sink) -> None:
        self._state = state
        self._closers = closers
        self._sink = sink
        self._phase: Callable[[str], Step | str | None] = self._open
        self._in_array = False
        self._called = False
        self._begin_object()

    def _begin_object(self) -> None:
        self._scanner = JsonScanner()
        self._collected: list[str] = []  # text of the key, or of a value that is needed whole
        self._key = ""
        self._keys = 0
        self._name: str | None = None
        self._early = ""  # arguments that came before the name
        self._ended = False
        self._broken = "the call was cut"
        self._held = ""  # after a break: what may be the beginning of a closer

    def feed(self, text: str) -> Step | None:
        """Let one phase after another read, until the text is used up or the value is over."""
        while text:
            read = self._phase(text)
            if isinstance(read, Step):
                return read
            text = read or ""
        return Step(RETRACT, "") if self._sink.overfull else None

    def finish(self, text: str) -> Step | None:
        """The model stopped inside the value."""
        step = self.feed(text)
        if step is not None:
            return step
        if self._sink.provisional:
            return Step(RETRACT, "")
        if self._held:
            self._sink.arguments(self._held, self._held)
        if self._name is not None and not self._ended:
            self._sink.give_up_call(self._broken)
        return None

    # Phases: each reads from the start of `text` and returns what it leaves, or a step.

    def _open(self, text: str) -> Step | str | None:
        """Before the value: an object or an array of them."""
        char, text = self._next(text)
        if char == "[" and not self._in_array:
            self._in_array = True
            self._sink.markup(char)
            return text
        if char == "{":
            self._sink.markup(char)
            self._phase = self._read_key
            return text
        if char == "]" and self._in_array:
            return self._array_over(text)
        return Step(RETRACT, char + text) if char else None

    def _read_key(self, text: str) -> Step | str | None:
        """After `{` or `,`: a key, or the end of the object."""
        if not self._collected:
            char, text = self._next(text)
            if char == "}":
                self._sink.markup(char)
                return self._object_over(text)
            if char != '"':
                return self._wrong(char + text) if char else None
            text = char + text
        rest = self._collect(text)
        if self._scanner.broken:
            return self._wrong(rest)
        if self._scanner.done:
            self._key = _string(self._collected) or ""
            self._keys += 1
            self._phase = self._read_colon
        return rest

    def _read_colon(self, text: str) -> Step | str | None:
        char, text = self._next(text)
        if char != ":":
            return self._wrong(char + text) if char else None
        self._sink.markup(char)
        self._scanner, self._collected = JsonScanner(), []
        self._phase = self._begin_value
        return text

    def _begin_value(self, text: str) -> Step | str | None:
        """Choose how the value is read: streamed, or collected because it is needed whole."""
        space = len(text) - len(text.lstrip(_SPACE))
        self._sink.markup(text[:space])
        if space == len(text):
            return None
        wanted = self._key in self._state.arguments and not self._ended and not self._early
        streams = wanted and self._name is not None and text[space] == "{"
        self._phase = self._stream_value if streams else self._read_value
        return text[space:]

    def _stream_value(self, text: str) -> Step | str | None:
        """The arguments, as they come."""
        out: list[str] = []
        end = self._scanner.feed(text, 0, out)
        self._sink.arguments("".join(out), text[:end])
        if self._scanner.broken:
            return self._break_call(f"the arguments are not valid JSON: {self._scanner.broken}", text[end:])
        if self._scanner.done:
            self._ended = True
            self._sink.end_call()
            self._phase = self._read_comma
        return text[end:]

    def _read_value(self, text: str) -> Step | str | None:
        """A value that is needed whole, or not at all."""
        rest = self._collect(text)
        if self._scanner.broken:
            return self._wrong(rest)
        if self._scanner.done:
            self._take_value("".join(self._collected))
            self._phase = self._read_comma
        return rest

    def _read_comma(self, text: str) -> Step | str | None:
        """After a value: another key, or the end of the object."""
        char, text = self._next(text)
        if char == ",":
            self._sink.markup(char)
            self._scanner, self._collected = JsonScanner(), []
            self._phase = self._read_key
            return text
        if char == "}":
            self._sink.markup(char)
            return self._object_over(text)
        return self._wrong(char + text) if char else None

    def _between(self, text: str) -> Step | str | None:
        """After an object in an array: another, or the end."""
        char, text = self._next(text)
        if char == ",":
            self._sink.markup(char)
            self._sink.begin_call("")
            self._begin_object()
            self._phase = self._open
            return text
        if char == "]":
            return self._array_over(text)
        return Step(self._state.then, char + text) if char else None

    def _read_broken(self, text: str) -> Step | str | None:
        """After a break: all up to a closing marker belongs to the broken call."""
        text, self._held = self._held + text, ""
        found = self._closers.find(text)
        end = len(text) if found is None else found.start
        self._sink.arguments(text[:end], text[:end])
        if found is None:
            return None
        if not found.marker:
            self._held = text[end:]
            return None
        self._sink.give_up_call(self._broken)
        return Step(self._state.then, text[end:])

    # What the phases share

    def _next(self, text: str) -> tuple[str, str]:
        """Skip space; the next character, and the text after it."""
        space = len(text) - len(text.lstrip(_SPACE))
        self._sink.markup(text[:space])
        return text[space : space + 1], text[space + 1 :]

    def _collect(self, text: str) -> str:
        end = self._scanner.feed(text, 0, self._collected)
        self._sink.markup(text[:end])
        return text[end:]

    def _take_value(self, value: str) -> None:
        """A key's value is whole: it may be the name, or arguments that could not stream."""
        if self._key in self._state.name and self._name is None:
            self._name = _string([value])
            if self._name:
                self._called = True
                self._sink.call(self._name)
                self._flush_early()
        elif self._key in self._state.arguments and not self._ended:
            self._early = value
            if self._name:
                self._flush_early()

    def _flush_early(self) -> None:
        if self._early:
            text, whole = _as_object(self._early)
            self._sink.arguments(text, "")
            self._ended = True
            if whole:
                self._sink.end_call()
            else:
                self._sink.give_up_call("the arguments are not an object")

    def _object_over(self, text: str) -> Step | str:
        if self._sink.provisional:
            return Step(RETRACT, text)
        if not self._ended:
            self._sink.arguments("{}", "")
            self._sink.end_call()
        if not self._in_array:
            return Step(self._state.then, text)
        self._phase = self._between
        return text

    def _array_over(self, text: str) -> Step:
        if self._sink.provisional:
            if not self._called:
                return Step(RETRACT, "]" + text)
            self._sink.markup("".join(self._sink.retract()))  # a comma before the end of the array
        self._sink.markup("]")
        return Step(self._state.then, text)

    def _wrong(self, rest: str) -> Step | str:
        """The JSON breaks here. What that means depends on how far the call got."""
        if self._sink.provisional:
            return Step(RETRACT, rest)
        if self._ended:
            return Step(self._state.then, rest)
        return self._break_call("the call is not valid JSON", rest)

    def _break_call(self, why: str, rest: str) -> str:
        self._broken = why
        self._phase = self._read_broken
        return rest


def _string(pieces: list[str]) -> str | None:
    """The string that this JSON text is, None if it is something else."""
    try:
        value = msgspec.json.decode("".join(pieces))
    except msgspec.DecodeError:
        return None  # a lone surrogate: JSON, but no text
    return value if isinstance(value, str) else None


def _as_object(value: str) -> tuple[str, bool]:
    """Arguments as the text of an object, and whether they are one.

    Models write `null` for "none", and some write the object into a string.
    """
    text = value
    if value.startswith('"'):
        text = _string([value]) or ""
    if text.strip() in ("", "null"):
        return "{}", True
    out: list[str] = []
    scanner = JsonScanner()
    end = scanner.feed(text, 0, out)
    if scanner.done and end == len(text.rstrip()) and text.lstrip().startswith("{"):
        return "".join(out), True
    return text, False
