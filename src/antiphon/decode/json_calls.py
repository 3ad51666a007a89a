"""Reads calls written as JSON: `{"name": …, "arguments": {…}}`, alone or in an array.

Or with the function's name as the key: `{"get_weather": {"city": "Rome"}}`.

Arguments are streamed verbatim once the name is known. If they come before the
name they are held back, up to the builder's limit. If the JSON is malformed before
the arguments there is no call; if it is malformed later the call is incomplete.
"""

import msgspec

from antiphon.core.grammar import JsonCalls, KeyedCalls, Quotes
from antiphon.core.json_scanner import JsonScanner
from antiphon.decode.call_readers import NO_OBJECT, JsonArgumentsReader, as_object
from antiphon.decode.entity_scanner import EntityScanner
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_NAME
from antiphon.decode.lexer import Lexer
from antiphon.decode.phases import PhaseReader
from antiphon.decode.readers import RETRACT, Step

_SCANNERS: dict[Quotes, type[JsonScanner]] = {Quotes.MARKS: JsonScanner, Quotes.ENTITIES: EntityScanner}
_SPACE = " \t\r\n"
_OTHER_KEYS = frozenset({"id", "type", "index", "tool_call_id"})
"""Further keys that a call may have. With any other key, the object is not a call."""


class JsonCallsReader(PhaseReader):
    """Reads one JSON value made of calls. `closers` and `openers` are those of `JsonArgumentsReader`."""

    def __init__(self, state: JsonCalls, closers: Lexer, openers: Lexer, builder: EventBuilder) -> None:
        super().__init__(self._open, state.then, closers, builder)
        self._state = state
        self._openers = openers
        self._make_scanner = _SCANNERS[state.quotes]
        self._in_array = False
        self._has_name = False
        self._begin_object()

    def _begin_object(self) -> None:
        self._scanner = self._make_scanner()
        self._scanned = False  # whether the scanner has got any text
        self._collected: list[str] = []  # text of the key, or of a value that is read as a whole
        self._key = ""
        self._name: str | None = None
        self._id: str | None = None
        self._early: str | None = None  # arguments before the name
        self._arguments: JsonArgumentsReader | None = None

    def feed(self, text: str) -> Step | None:
        """Run phases. What has too long an opening is no call."""
        step = super().feed(text)
        return Step(RETRACT, "") if step is None and self._builder.over_limit else step

    def _finish(self, text: str) -> Step | None:
        """The model stopped inside the value."""
        step = self.feed(text)
        if step is not None:
            return step
        if self._builder.provisional:
            return None if self._builder.in_list else Step(RETRACT, "")
        if self._builder.in_call and self._arguments is not None:
            self._arguments.finish("")
        return None

    # Phases

    def _open(self, text: str) -> Step | str | None:
        """Before the value: an object or an array of them."""
        char, text = self._next(text)
        if char == "[" and not self._in_array:
            self._in_array = True
            self._builder.markup(char)
            return text
        if char == "{":
            self._builder.markup(char)
            self._phase = self._read_key
            return text
        if char == "]" and self._in_array:
            return self._end_array(text)
        return Step(RETRACT, char + text) if char else None

    def _read_key(self, text: str) -> Step | str | None:
        """After `{` or `,`: a key, or the end of the object."""
        if not self._scanned:
            char, text = self._next(text)
            if char == "}":
                self._builder.markup(char)
                return self._end_object(text)
            if char not in ('"', "&"):  # the scanner knows whether it is an entity
                return self._malformed(char + text) if char else None
            text = char + text
        rest = self._collect(text)
        if self._scanner.broken:
            return self._malformed(rest)
        if self._scanner.done:
            self._key = _string(self._collected) or ""
            self._phase = self._read_colon
            if self._builder.provisional and not self._take_key(self._key):
                return Step(RETRACT, rest)
        return rest

    def _read_colon(self, text: str) -> Step | str | None:
        char, text = self._next(text)
        if char != ":":
            return self._malformed(char + text) if char else None
        self._builder.markup(char)
        self._begin_text()
        self._phase = self._begin_value
        return text

    def _begin_value(self, text: str) -> Step | str | None:
        """Choose how the value is read: streamed, or collected because it must be parsed."""
        space = len(text) - len(text.lstrip(_SPACE))
        self._builder.markup(text[:space])
        if space == len(text):
            return None
        streams = self._is_arguments(self._key) and self._builder.in_call
        self._phase = self._stream_value if streams else self._read_value
        return text[space:]

    def _stream_value(self, text: str) -> Step | str | None:
        """The arguments, streamed."""
        if self._arguments is None:
            closers, openers, scanner = self._closers, self._openers, self._make_scanner
            self._arguments = JsonArgumentsReader(self._then, closers, openers, self._builder, scanner)
        step = self._arguments.feed(text)
        if step is None:
            return None
        self._phase = self._read_comma
        return step.rest

    def _read_value(self, text: str) -> Step | str | None:
        """A value that is parsed, or ignored."""
        rest = self._collect(text)
        if self._scanner.broken:
            return self._malformed(rest)
        if self._scanner.done:
            self._phase = self._read_comma
            if not self._take_value("".join(self._collected)):
                return Step(RETRACT, rest)
        elif not self._builder.provisional:
            self._collected.clear()  # it is ignored
        return rest

    def _read_comma(self, text: str) -> Step | str | None:
        """After a value: another key, or the end of the object."""
        char, text = self._next(text)
        if char == ",":
            self._builder.markup(char)
            self._next_key()
            self._phase = self._read_key
            return text
        if char == "}":
            self._builder.markup(char)
            return self._end_object(text)
        return self._malformed(char + text) if char else None

    def _between(self, text: str) -> Step | str | None:
        """After an object in an array: another, or the end."""
        char, text = self._next(text)
        if char == ",":
            self._builder.markup(char)
            self._builder.begin_provisional(None)
            self._begin_object()
            self._phase = self._open
            return text
        if char == "]":
            return self._end_array(text)
        return Step(self._then, char + text) if char else None

    # Shared by the phases

    def _next(self, text: str) -> tuple[str, str]:
        """Skip space; the next character, and the text after it."""
        space = len(text) - len(text.lstrip(_SPACE))
        self._builder.markup(text[:space])
        return text[space : space + 1], text[space + 1 :]

    def _next_key(self) -> None:
        self._begin_text()

    def _begin_text(self) -> None:
        self._scanner, self._scanned, self._collected = self._make_scanner(), False, []

    def _collect(self, text: str) -> str:
        self._scanned = True
        end = self._scanner.feed(text, 0, self._collected)
        self._builder.markup(text[:end])
        return text[end:]

    def _take_key(self, key: str) -> bool:
        """A key before the name is known. False if this is not a call."""
        state = self._state
        return any(key in keys for keys in (state.name, state.arguments, state.ids, _OTHER_KEYS))

    def _is_arguments(self, key: str) -> bool:
        return key in self._state.arguments

    def _take_value(self, value: str) -> bool:
        """A key's value is complete. False if this is not a call."""
        if self._key in self._state.arguments and self._early is None:
            self._early = value
        if self._key in self._state.ids and len(value) <= MAX_NAME:
            self._id = _string([value]) or self._id
        if self._key not in self._state.name or self._name is not None:
            return True
        self._name = _string([value])
        if not self._name or not self._builder.accepts(self._name, self._state.names):
            return False
        self._has_name = True
        self._builder.name_call(self._name, self._id)
        if self._early is not None:
            self._emit_early(self._early)
        return True

    def _emit_early(self, early: str) -> None:
        text = as_object(early)
        if text is None:
            self._builder.broken_arguments(early, "", NO_OBJECT)
            self._builder.fail_call(NO_OBJECT)
        else:
            self._builder.arguments(text, "")
            self._builder.end_call()

    def _end_object(self, text: str) -> Step | str:
        if self._builder.provisional:
            return Step(RETRACT, text)
        if self._builder.in_call:
            self._builder.arguments("{}", "")
            self._builder.end_call()
        if not self._in_array:
            return Step(self._then, text)
        self._phase = self._between
        return text

    def _end_array(self, text: str) -> Step:
        if self._builder.provisional and not self._has_name:
            return Step(RETRACT, "]" + text)
        self._builder.discard_call()  # a trailing comma in the array
        self._builder.markup("]")
        return Step(self._then, text)

    def _malformed(self, rest: str) -> Step | str:
        """The JSON is malformed here: no call if it has no arguments yet, else an incomplete one."""
        if self._builder.retractable:
            return Step(RETRACT, rest)
        if self._builder.in_call:
            self._builder.fail_call("the call is not valid JSON")
        return Step(self._then, rest)


def _string(pieces: list[str]) -> str | None:
    """The value of a JSON string, None for any other JSON text."""
    try:
        return msgspec.json.decode("".join(pieces), type=str)
    except msgspec.DecodeError:
        return None


class KeyedCallsReader(JsonCallsReader):
    """Reads one JSON value made of calls; each key is a call, and its value the arguments."""

    def __init__(self, state: KeyedCalls, closers: Lexer, openers: Lexer, builder: EventBuilder) -> None:
        super().__init__(JsonCalls(state.then, names=state.names), closers, openers, builder)

    def _take_key(self, key: str) -> bool:
        if not key or not self._builder.accepts(key, self._state.names):
            return False
        self._has_name = True
        self._builder.name_call(key)
        return True

    def _is_arguments(self, key: str) -> bool:
        return True

    def _next_key(self) -> None:
        self._builder.begin_provisional(None)
        self._begin_object()
