"""Readers of the parts of calls: headers, keys, and all arguments as one JSON object.

See `readers.py` for the protocol of readers.
"""

import re
from collections.abc import Callable
from copy import copy

import msgspec

from antiphon.core.grammar import AcceptedNames, ArgumentKey, Key, Lookahead, Name
from antiphon.core.json_scanner import JsonScanner
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_NAME
from antiphon.decode.lexer import Lexer
from antiphon.decode.phases import PhaseReader
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.until_marker import ShortTextReader

MAX_COLLECTED = 256 * 1024
"""Characters of arguments that must be complete before they can be parsed."""
MAX_DOUBTFUL = 512
"""Characters after a marker inside JSON within which the JSON is malformed if another call has begun."""
NO_OBJECT = "the arguments are not an object"

_WORD = re.compile(r"\s*[^\s<]*\s*")


class NameReader(ShortTextReader):
    """Reads the header of a call. A header that names no function opens no call."""

    def __init__(self, state: Name, lexer: Lexer, builder: EventBuilder) -> None:
        super().__init__(lexer, builder, state.words)
        self._state = state

    def _parse(self, header: str, marker: str, rest: str) -> Step | None:
        state = self._state
        if marker in state.glued:
            return self._parse_glued(header, state.glued[marker], marker, rest)
        call_header = state.parse(header)
        if call_header is not None:
            names = AcceptedNames.DECLARED if marker in state.unclosed else state.names
            if not self._builder.accepts(call_header.name, names):
                return None
            self._builder.name_call(call_header.name, call_header.call_id)
        elif header.strip() or marker not in state.unclosed:
            return None  # the same marker again, without a name between, is a habit
        self._builder.markup(header)
        if marker in state.peek:
            return Step(state.peek[marker], marker + rest)
        return Step(state.on[marker], rest, marker)

    def _parse_glued(self, header: str, to: str, marker: str, rest: str) -> Step | None:
        """The names of the function and of its first argument, without a marker between them."""
        names = header.lstrip()
        split = self._builder.split_name(names)
        if split is None:
            return None
        name, key = split
        self._builder.markup(header[: len(header) - len(key)])
        self._builder.name_call(name)
        self._builder.key(ArgumentKey(key.strip()), key)
        return Step(to, rest, marker)


class LookaheadReader:
    """Reads a marker, and looks at the word and the marker after it."""

    def __init__(self, state: Lookahead, builder: EventBuilder) -> None:
        self._state = state
        self._builder = builder
        self._held = ""

    def feed(self, text: str) -> Step | None:
        """Hold the text back until it shows what the marker means."""
        self._held += text
        return self._decide(self._may_continue)

    def finish(self, text: str) -> Step | None:
        """The same for the last text."""
        self._held += text
        return self._decide(lambda rest: False) if self._held else None

    def _decide(self, waits: Callable[[str], bool]) -> Step | None:
        marker = self._state.marker
        word = _WORD.match(self._held, len(marker))
        if word is None:  # not all of the marker has come
            return None
        rest = self._held[word.end() :]
        to = next((to for after, to in self._state.on.items() if rest.startswith(after)), None)
        if to is None and waits(rest) and word.end() <= MAX_NAME:
            return None
        if self._builder.over_limit:
            return Step(RETRACT, self._held)
        held, self._held = self._held, ""
        return Step(to or self._state.otherwise, held[len(marker) :], marker)

    def _may_continue(self, rest: str) -> bool:
        return any(after.startswith(rest) for after in self._state.on)


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


class JsonArgumentsReader(PhaseReader):
    """Reads the arguments of a call as one JSON object, and streams them verbatim.

    If the JSON is malformed, all text up to one of the `closers` becomes arguments of an incomplete call, so
    no text is lost. `openers` are those of them that begin another call. One inside the JSON is text, unless
    the JSON is malformed soon after it: then the call ended there, and another one began.
    """

    def __init__(
        self,
        then: str,
        closers: Lexer,
        openers: Lexer,
        builder: EventBuilder,
        scanner: Callable[[], JsonScanner] = JsonScanner,
    ) -> None:
        super().__init__(self._begin, then, closers, builder)
        self._openers = openers
        self._scanner = scanner()
        self._collected: list[str] = []
        self._size = 0

    def _finish(self, text: str) -> Step | None:
        """The model stopped inside the arguments."""
        step = self.feed(text)
        if step is None and self._phase == self._doubt:
            return self._end_before(self._held)
        if step is None:
            hidden = self._phase in (self._begin, self._stream)  # maybe the beginning of a marker
            visible = "" if hidden else "".join(self._collected) + self._held
            self._builder.broken_arguments(visible, self._held, self._broken)
            self._builder.fail_call(self._broken)
        return step

    # Phases

    def _begin(self, text: str) -> Step | str | None:
        """Before the object: space, or a closing marker, which means no arguments."""
        body = text.lstrip()
        match = self._closers.find(body)
        if not body or (match and match.start == 0 and not match.marker):
            self._held = text
            return None
        self._builder.markup(text[: len(text) - len(body)])
        if match and match.start == 0:
            return self._end("{}", body)
        self._phase = self._stream if body[0] == "{" else self._collect
        return body

    def _stream(self, text: str) -> Step | str | None:
        match = self._openers.find(text)
        if match is None:
            return self._scan(text)
        marked = text[match.start :]
        result = self._scan(text[: match.start])
        if isinstance(result, Step):
            return result._replace(rest=result.rest + marked)
        if self._phase != self._stream:
            return (result or "") + marked
        if not match.marker:
            self._held = marked
            return None
        self._phase = self._doubt
        return marked

    def _scan(self, text: str) -> Step | str:
        out: list[str] = []
        end = self._scanner.feed(text, 0, out)
        self._builder.arguments("".join(out), text[:end])
        return self._after(text[end:])

    def _doubt(self, text: str) -> Step | str | None:
        """From a marker of another call on: hold text back, until it shows whether it is in the JSON."""
        ahead, start = copy(self._scanner), text[:MAX_DOUBTFUL]
        ahead.feed(start, 0, [])
        if ahead.broken:
            return self._end_before(text)
        if len(text) < MAX_DOUBTFUL and not ahead.done:
            self._held = text
            return None
        self._phase = self._stream
        if ahead.done:
            return self._scan(text)
        self._scan(start)
        return text[MAX_DOUBTFUL:]

    def _end_before(self, text: str) -> Step:
        """Another call began inside the arguments."""
        self._builder.fail_call("another call began inside the arguments")
        return Step(self._then, text)

    def _collect(self, text: str) -> Step | str:
        """Not an object: models write a string that contains one, or null for no arguments."""
        end = self._scanner.feed(text, 0, self._collected)
        self._builder.arguments("", text[:end])
        self._size += end
        if self._scanner.done:
            return self._end_collected("".join(self._collected), text[end:])
        if self._size > MAX_COLLECTED:
            self._fail("the arguments are too long for a string that contains an object")
        return self._after(text[end:])

    def _end_collected(self, value: str, rest: str) -> Step:
        text = as_object(value)
        if text is not None:
            return self._end(text, rest)
        self._builder.broken_arguments(value, "", NO_OBJECT)
        self._builder.fail_call(NO_OBJECT)
        return Step(self._then, rest)

    # Shared by the phases

    def _after(self, rest: str) -> Step | str:
        if self._scanner.broken:
            self._fail(f"the arguments are not valid JSON: {self._scanner.broken}")
        elif self._scanner.done and self._phase == self._stream:
            return self._end("", rest)
        return rest

    def _fail(self, why: str) -> None:
        self._broken, self._phase = why, self._break
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
