"""Reads arguments written as `{key:<|"|>text<|"|>,n:42,list:[1],o:{…}}`, as Gemma writes them.

Keys are bare, strings are delimited by tokens and streamed; numbers and names are written when they are
complete. The tool's schema states the types of arguments; inside containers the type of a value is inferred
from its text. Reading starts after the opening brace.
"""

import json
import re
from collections.abc import Callable

from antiphon.core.grammar import ArgumentKey, BraceArguments
from antiphon.core.json_scanner import MAX_DEPTH
from antiphon.decode.arguments.types import LITERALS, coerce
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_HEADER, plain_key
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import RETRACT, Step

MAX_WORD = 4000
"""Characters of a bare value inside a container."""

_KEY_END = re.compile(r"[:,)\]}]")
_VALUE_END = {end: re.compile(rf"[,{re.escape(end)}]") for end in ")]}"}
_CLOSER = {"{": "}", "[": "]"}


class BraceArgumentsReader:
    """Reads all arguments of one call. `closers` find the markers after them, which also end them."""

    def __init__(self, state: BraceArguments, closers: Lexer, builder: EventBuilder) -> None:
        self._state = state
        self._closers = closers
        self._builder = builder
        self._quotes = Lexer([state.quote])
        self._stack = [state.close]  # the closing text of each open container
        self._empty = True  # the innermost container
        self._phase: Callable[[str], Step | str | None] = self._key
        self._held = ""
        self._argument = ""  # the name of the current argument of the call
        self._word = ""
        self._broken = "the call was truncated"

    def feed(self, text: str) -> Step | None:
        """Run phases until the text is consumed or the arguments are complete."""
        text, self._held = self._held + text, ""
        while text:
            result = self._phase(text)
            if isinstance(result, Step):
                return result
            text = result or ""
        return None

    def finish(self, text: str) -> Step | None:
        """The model stopped inside the arguments."""
        step = self.feed(text)
        if step is None:
            # The held text may belong to a marker.
            self._builder.broken_arguments(self._word, self._held, self._broken)
        return step

    # Phases: each reads from the start of `text`, and returns the rest, or a step.

    def _key(self, text: str) -> Step | str | None:
        """The key of an argument or of an object's member, or the object's end."""
        found = _KEY_END.search(text)
        closer = self._closers.find(text)
        end = found.start() if found else len(text)
        if closer and closer.marker and closer.start < end:
            found, end = None, closer.start
        elif not found and len(text) <= MAX_HEADER:
            self._held = text
            return None
        if not found or found[0] != ":":
            return (
                self._end(text) if not text[:end].strip() else self._fail("an argument without a name", text)
            )
        keyed = plain_key(text[:end].replace(self._state.quote, ""))  # models put keys in quotes, too
        if keyed is None:
            return self._fail("an argument without a name", text)
        if len(self._stack) == 1:
            self._argument = keyed.key
        else:
            self._builder.arguments(("" if self._empty else ", ") + _json(keyed.key) + ": ", "")
        self._empty = False
        self._builder.arguments("", text[: end + 1])
        self._phase = self._value
        return text[end + 1 :]

    def _item(self, text: str) -> Step | str | None:
        """A value in an array, or the array's end."""
        text = self._skip(text)
        if text[:1] == "]":
            return self._end(text)
        if text:
            self._builder.arguments("" if self._empty else ", ", "")
            self._empty = False
            self._phase = self._value
        return text

    def _value(self, text: str) -> Step | str | None:
        """The start of a value, which shows its kind."""
        text = self._skip(text)
        quote = self._state.quote
        if quote.startswith(text[: len(quote)]) and len(text) < len(quote):
            self._held = text
            return None
        if text[0] in "{[":
            return self._open(text)
        quoted = text.startswith(quote)
        if len(self._stack) == 1:
            self._builder.key(ArgumentKey(self._argument, self._state.quoted if quoted else "literal"), "")
        elif quoted:
            self._builder.arguments('"', "")
        self._word = ""
        self._phase = self._string if quoted else self._bare
        self._builder.arguments("", quote if quoted else "")
        return text[len(quote) :] if quoted else text

    def _open(self, text: str) -> Step | str:
        if len(self._stack) == MAX_DEPTH:
            return self._fail("nested too deeply", text)
        if len(self._stack) == 1:
            self._builder.key(ArgumentKey(self._argument, "written"), "")
        self._stack.append(_CLOSER[text[0]])
        self._empty = True
        self._builder.arguments(text[0], text[0])
        self._phase = self._key if text[0] == "{" else self._item
        return text[1:]

    def _string(self, text: str) -> Step | str | None:
        found = self._quotes.find(text)
        end = len(text) if found is None else found.start
        self._text(text[:end])
        if found is None or not found.marker:
            self._held = text[end:]
            return None
        if len(self._stack) == 1:
            self._builder.end_value(found.marker)
        else:
            self._builder.arguments('"', found.marker)
        self._phase = self._after
        return text[found.end :]

    def _bare(self, text: str) -> Step | str | None:
        """A value without quotes, up to a comma, the end of its container, or a marker."""
        found = _VALUE_END[self._stack[-1]].search(text)
        closer = self._closers.find(text)
        end = found.start() if found else len(text)
        ended = found is not None
        if closer and closer.start < end:
            end, ended = closer.start, bool(closer.marker)
        self._text(text[:end])
        if len(self._word) > MAX_WORD:
            return self._fail("a value that is too long", text[end:])
        if not ended:
            self._held = text[end:]
            return None
        if len(self._stack) == 1:
            self._builder.end_value("")
        else:
            self._builder.arguments(coerce(self._word.strip(), LITERALS), "")
        self._word = ""
        self._phase = self._after
        return text[end:]

    def _after(self, text: str) -> Step | str | None:
        """After a value: a comma, or the end of its container."""
        text = self._skip(text)
        if not text:
            return None
        if text[0] != ",":
            return self._end(text)
        self._builder.arguments("", ",")
        self._phase = self._item if self._stack[-1] == "]" else self._key
        return text[1:]

    def _break(self, text: str) -> Step | str | None:
        """After malformed arguments: all text up to a marker belongs to them, so no text is lost."""
        found = self._closers.find(text)
        end = len(text) if found is None else found.start
        self._builder.broken_arguments(text[:end], text[:end], self._broken)
        if found is None or not found.marker:
            self._held = text[end:]
            return None
        self._builder.fail_call(self._broken)
        return Step(RETRACT if self._builder.retractable else self._state.then, text[end:])

    # Shared by the phases

    def _end(self, text: str) -> Step | str | None:
        """Expect the end of the innermost container; that of the call may be missing."""
        text = self._skip(text)
        closer = self._closers.find(text)
        outermost = len(self._stack) == 1
        if outermost and closer and closer.start == 0:
            if closer.marker:
                return Step(self._state.then, text)
            self._held, self._phase = text, self._after
            return None
        if text[:1] != self._stack[-1]:
            return self._fail(f"unexpected {text[:1]!r}", text)
        if outermost:
            return Step(self._state.then, text[1:], text[0])
        self._builder.arguments(self._stack.pop(), text[0])
        self._empty, self._phase = False, self._after
        return text[1:]

    def _fail(self, why: str, rest: str) -> str:
        self._broken, self._phase = why, self._break
        self._builder.broken_arguments(self._word, "", why)
        self._word = ""
        return rest

    def _text(self, text: str) -> None:
        """Text of the current value."""
        if len(self._stack) == 1:
            self._builder.value(text, text)
        elif self._phase == self._string:
            self._builder.arguments(_json(text)[1:-1], text)
        else:
            self._word += text
            self._builder.arguments("", text)

    def _skip(self, text: str) -> str:
        body = text.lstrip()
        self._builder.arguments("", text[: len(text) - len(body)])
        return body


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
