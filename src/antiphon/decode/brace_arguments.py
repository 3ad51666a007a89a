"""Reads arguments written as `{key:<|"|>text<|"|>,n:42,list:[1],o:{…}}`, as Gemma writes them.

Keys are bare, strings are delimited by tokens and streamed; numbers and names are written when they are
complete. The tool's schema states the types of arguments; inside containers the type of a value is inferred
from its text. Reading starts after the opening brace.

Models also write strings in quotes of JSON or Python, or without any, end them with another quote than they
began with, leave out commas, and write `=` for `:`. Where such a value ends is told by what follows: the next
argument, or the end of the call (`brace_values.py`).
"""

import json
import re

from antiphon.core.grammar import ArgumentKey, BraceArguments
from antiphon.core.json_scanner import MAX_DEPTH
from antiphon.decode.arguments.brace_values import ValueEnds
from antiphon.decode.arguments.types import LITERALS, coerce
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_HEADER, plain_key
from antiphon.decode.lexer import Lexer
from antiphon.decode.phases import PhaseReader
from antiphon.decode.readers import RETRACT, Step

MAX_WORD = 4000
"""Characters of a bare value inside a container."""

_KEY_END = re.compile(r"[:=,)\]}]")
_VALUE_END = {end: re.compile(rf"[,{re.escape(end)}]") for end in ")]}"}
_CLOSER = {"{": "}", "[": "]"}


class BraceArgumentsReader(PhaseReader):
    """Reads all arguments of one call. `closers` find the markers after them, which also end them."""

    def __init__(self, state: BraceArguments, closers: Lexer, builder: EventBuilder) -> None:
        super().__init__(self._key, state.then, closers, builder)
        self._state = state
        self._ends = ValueEnds(state.quote, closers.markers)
        self._stack = [state.close]  # the closing text of each open container
        self._empty = True  # the innermost container
        self._argument = ""  # the name of the current argument of the call
        self._word = ""

    def _finish(self, text: str) -> Step | None:
        """The model stopped inside the arguments."""
        self._ends.final = True
        step = self.feed(text)
        if step is None:
            # The held text may belong to a marker.
            self._builder.broken_arguments(self._word, self._held, self._broken)
        return step

    # Phases

    def _key(self, text: str) -> Step | str | None:
        """The key of an argument or of an object's member, or the object's end."""
        match = _KEY_END.search(text)
        closer = self._closers.find(text)
        end = match.start() if match else len(text)
        if closer and closer.marker and closer.start < end:
            match, end = None, closer.start
        elif not match and len(text) <= MAX_HEADER:
            self._held = text
            return None
        if not match or match[0] not in ":=":
            return (
                self._end(text) if not text[:end].strip() else self._fail("an argument without a name", text)
            )
        keyed = plain_key(text[:end].replace(self._state.quote, "").strip().strip("\"'"))  # also in quotes
        if keyed is None:
            return self._fail("an argument without a name", text)
        if len(self._stack) == 1:
            self._argument = keyed.key
            self._ends.assign = self._ends.assign or match[0]
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
        quote, outermost = self._state.quote, len(self._stack) == 1
        if quote.startswith(text[: len(quote)]) and len(text) < len(quote):
            self._held = text
            return None
        if text[0] in "{[" and not (outermost and self._builder.takes_text(self._argument)):
            return self._open(text)
        opener = quote if text.startswith(quote) else text[0] if text[0] in "\"'" else ""
        if outermost:
            self._builder.key(ArgumentKey(self._argument, self._state.quoted if opener else "literal"), "")
        elif opener:
            self._builder.arguments('"', "")
        self._word = ""
        is_text = bool(opener) or self._builder.may_be_text(self._argument)
        self._ends.begin(opener, self._stack, self._builder.argument_names, is_text)
        self._phase = self._text_value if opener or outermost else self._bare
        self._builder.arguments("", opener)
        return text[len(opener) :]

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

    def _text_value(self, text: str) -> str | None:
        """A string, or a value of the call without quotes."""
        at = start = 0
        while stop := self._ends.stops.search(text, at):
            result = self._ends.find(text, stop.start(), start)
            if isinstance(result, int):  # it goes on
                at = result
                continue
            self._text(text[start : stop.start()])
            if result is None:
                self._held = text[stop.start() :]
                return None
            if result.text is None:
                return self._end_value(text, stop.start(), result.after)
            self._text(result.text, text[stop.start() : result.after])
            at = start = result.after
        self._text(text[start:])
        return ""

    def _end_value(self, text: str, end: int, after: int) -> str:
        raw = text[end:after]
        if len(self._stack) == 1:
            self._builder.end_value(raw)
        else:
            self._builder.arguments('"', raw)
        self._phase = self._after
        return text[after:]

    def _bare(self, text: str) -> Step | str | None:
        """A value without quotes in a container, up to a comma, the container's end, or a marker."""
        match = _VALUE_END[self._stack[-1]].search(text)
        closer = self._closers.find(text)
        end = match.start() if match else len(text)
        ended = match is not None
        if closer and closer.start < end:
            end, ended = closer.start, bool(closer.marker)
        self._word += text[:end]
        self._builder.arguments("", text[:end])
        if len(self._word) > MAX_WORD:
            return self._fail("a value that is too long", text[end:])
        if not ended:
            self._held = text[end:]
            return None
        self._builder.arguments(coerce(self._word.strip(), LITERALS), "")
        self._word = ""
        self._phase = self._after
        return text[end:]

    def _after(self, text: str) -> Step | str | None:
        """After a value: a comma, which may be missing, or the end of its container."""
        text = self._skip(text)
        if not text:
            return None
        mark = self._ends.mark(text, 0)
        if mark is None:
            self._held = text
            return None
        if text[0] in ")]}" or (mark and mark != self._state.quote):
            return self._end(text)
        comma = text[0] == ","
        self._builder.arguments("", text[:comma])
        self._phase = self._item if self._stack[-1] == "]" else self._key
        return text[comma:]

    def _break(self, text: str) -> Step | None:
        step = super()._break(text)
        return step._replace(to=RETRACT) if step and self._builder.retractable else step

    # Shared by the phases

    def _end(self, text: str) -> Step | str | None:
        """Expect the end of the innermost container; that of the call may be missing, or another bracket."""
        text = self._skip(text)
        closer = self._closers.find(text)
        outermost = len(self._stack) == 1
        if outermost and closer and closer.start == 0:
            if closer.marker:
                return Step(self._then, text)
            self._held, self._phase = text, self._after
            return None
        if text[:1] != self._stack[-1] and not (outermost and text[:1] in ("}", ")")):
            return self._fail(f"unexpected {text[:1]!r}", text)
        if outermost:
            return Step(self._then, text[1:], text[0])
        self._builder.arguments(self._stack.pop(), text[0])
        self._empty, self._phase = False, self._after
        return text[1:]

    def _fail(self, why: str, rest: str) -> str:
        self._broken, self._phase = why, self._break
        self._builder.broken_arguments(self._word, "", why)
        self._word = ""
        return rest

    def _text(self, text: str, raw: str | None = None) -> None:
        """Text of the current value; `raw` is how the model wrote it."""
        self._ends.pass_text(text)
        if len(self._stack) == 1:
            self._builder.value(text, text if raw is None else raw)
        else:
            self._builder.arguments(_json(text)[1:-1], text if raw is None else raw)

    def _skip(self, text: str) -> str:
        body = text.lstrip()
        self._builder.arguments("", text[: len(text) - len(body)])
        return body


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
